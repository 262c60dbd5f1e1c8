// Calls with tensors on devices within a process: where tensors arrive, and the order of device work on them.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <device/memory/pinned_memory.hpp>

#include "captured_log.hpp"
#include "device_group.hpp"
#include "expect_error.hpp"

namespace device_calls_test {

using namespace std::chrono_literals;
using namespace device_calls;
using ferry::device;
using ferry::device_map;
using ferry::errc;
using ferry::stream;
using ferry::tensor;

tensor same(tensor t) { return t; }
tensor second_of(const tensor& t) { return duplicate(t); }
int device_of(const tensor& t) { return t.device().is_cpu() ? -1 : t.device().index; }
void ignore(const tensor&) {}
void ignore_both(const tensor&, const tensor&) {}
int number() { return 7; }
std::vector<tensor> crossed(const tensor& first, const tensor& second) { return {duplicate(second), duplicate(first)}; }
std::vector<tensor> on_four() {
  return {filled(gpu(0), 10), filled(gpu(1), 11), filled(gpu(2), 12), filled(gpu(3), 13)};
}
tensor made_on(int index, int value) { return filled(gpu(index), static_cast<unsigned char>(value)); }
tensor fails_on(const tensor& t) {
  if (t.device() != gpu(5))
    throw std::invalid_argument("expected all tensors on cuda:5, found one on " + to_string(t.device()));
  return t;
}

// Works on a stream of its own, then returns to the call's stream.
tensor on_own_stream(const tensor& t) {
  const stream of_call = ferry::current_stream(t.device());
  const stream own = ferry::pool_stream(t.device());
  own.wait(of_call);
  tensor result;
  {
    const ferry::stream_guard guard(own);
    result = duplicate(duplicate(t));
  }
  of_call.wait(own);
  result.storage().record_use(of_call);
  return result;
}

std::vector<tensor>& kept_here() {
  static std::vector<tensor> all;
  return all;
}
void keep_here(const tensor& t) { kept_here().push_back(t); }

bool has_streams_of_its_own(int devices) {
  for (int i = 0; i != devices; ++i) {
    if (ferry::current_stream(gpu(i)) == ferry::default_stream(gpu(i))) return false;
  }
  return true;
}

ferry::task<tensor> in_steps(tensor t) {
  auto first = co_await ferry::rpc_async<&second_of>("worker0", t);
  co_return duplicate(first);
}

ferry::future<tensor> relayed(const tensor& t) {
  return ferry::rpc_async<&second_of>("worker0", t).then([](const tensor& back) { return duplicate(back); });
}

namespace {

// Runs under each schedule of the fake CUDA runtime, since each reveals different errors.
template <class F>
void in_every_order(F&& run, int rounds = 4) {
  for (const auto how : {fake_cuda::schedule::newest_first, fake_cuda::schedule::random}) {
    fake_cuda::set_schedule(how);
    for (int round = 0; round != rounds; ++round) run(static_cast<unsigned char>(1 + round));
  }
  fake_cuda::set_schedule(fake_cuda::schedule::random);
}

const device_map identity{{"cuda:0", "cuda:0"}, {"cuda:1", "cuda:1"}};
const device_map swapped{{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}};

}  // namespace

TEST_CASE("[row 196] arguments arrive on the mapped device, and results come back by the inverse map") {
  device_group group({map_to("worker1", swapped), nullptr});
  in_every_order([&](unsigned char value) {
    for (const bool blocking : {true, false}) {
      const tensor t = filled(gpu(0), value);
      CHECK(call<device_of>(group[0], blocking, "worker1", t) == 1);
      const tensor back = call<second_of>(group[0], blocking, "worker1", t);
      CHECK(back.device() == gpu(0));
      CHECK(value_read(back) == value);
      CHECK(value_of(t) == value);
    }
  });
}

TEST_CASE("no thread waits for a device: calls return while no device makes progress") {
  device_group group({map_to("worker1", swapped), nullptr});
  CHECK(value_read(group[0].rpc_sync<&second_of>("worker1", filled(gpu(0), 1))) == 1);
  const auto waits = fake_cuda::host_synchronizations();
  tensor first;
  tensor second;
  tensor third;
  {
    const fake_cuda::pause nothing_runs;
    const tensor t = filled(gpu(0), 42);
    first = duplicate(group[0].rpc_sync<&second_of>("worker1", t));
    second = duplicate(group[0].rpc_async<&second_of>("worker1", t).get());
    third = duplicate(
        group[0].rpc_async<&second_of>("worker1", t).then([](const tensor& r) { return duplicate(r); }).get());
  }
  CHECK(value_of(first) == 42);
  CHECK(value_of(second) == 42);
  CHECK(value_of(third) == 42);
  CHECK(fake_cuda::host_synchronizations() == waits);
}

TEST_CASE("[row 198] CPU arguments arrive on a device and come back, and the other way round") {
  for (const int index : {0, 3}) {
    const device there = gpu(index);
    CAPTURE(index);
    device_group group({[&](auto& o) {
                          o.set_device_map("worker1", {{host, there}});
                        },
                        map_to("worker0", {{there, host}})});
    in_every_order([&](unsigned char value) {
      for (const bool blocking : {true, false}) {
        const tensor from_cpu = filled(host, value);
        CHECK(call<device_of>(group[0], blocking, "worker1", from_cpu) == index);
        const tensor back = call<second_of>(group[0], blocking, "worker1", from_cpu);
        CHECK(back.device() == host);
        CHECK(value_read(back) == value);
        const tensor on_gpu = filled(there, value);
        CHECK(call<device_of>(group[1], blocking, "worker0", on_gpu) == -1);
        const tensor returned = call<same>(group[1], blocking, "worker0", on_gpu);
        CHECK(returned.device() == there);
        CHECK(value_read(returned) == value);
      }
    });
    // Once staging memory is allocated, no thread waits.
    const auto waits = [] {
      return fake_cuda::host_synchronizations() - fake_cuda::calls(fake_cuda::call::host_alloc);
    };
    const auto before = waits();
    CHECK(value_read(group[0].rpc_sync<&second_of>("worker1", filled(host, 9))) == 9);
    CHECK(value_read(group[1].rpc_sync<&same>("worker0", filled(there, 9))) == 9);
    CHECK(waits() == before);
  }
}

TEST_CASE("a CPU tensor may be overwritten as soon as it is sent") {
  device_group group({map_to("worker1", {{"cpu", "cuda:0"}}), nullptr});
  tensor t = filled(host, 5);
  tensor back;
  ferry::future<tensor> coming;
  {
    const fake_cuda::pause nothing_runs;
    coming = group[0].rpc_async<&second_of>("worker1", t);
    CHECK(group[0].rpc_sync<number>("worker1") == 7);  // the request has been sent by now
    std::fill_n(static_cast<unsigned char*>(t.data()), t.numel(), static_cast<unsigned char>(99));
  }
  CHECK(value_read(coming.get()) == 5);
}

TEST_CASE("foreign memory stays until the device has read it, although no thread waits") {
  device_group group({map_to("worker1", {{"cuda:0", "cuda:1"}}), nullptr});
  std::atomic<bool> freed{false};
  ferry::future<tensor> result;
  {
    const fake_cuda::pause nothing_runs;
    const tensor memory = filled(gpu(0), 42);
    result = group[0].rpc_async<&same>(
        "worker1", ferry::from_blob(
                       memory.data(), {1000}, ferry::dtype::u8, [&freed, memory](void*) { freed = true; }, gpu(0)));
    result.wait();
    CHECK_FALSE(freed);
  }
  CHECK(value_read(result.get()) == 42);
  while (!freed) std::this_thread::yield();
  // One that is not a dense block is packed for the message: by a kernel that has not read it when the call returns.
  freed = false;
  {
    const fake_cuda::pause nothing_runs;
    const tensor memory = filled(gpu(0), 44);
    result = group[0].rpc_async<&same>(
        "worker1", ferry::from_blob(
                       memory.data(), {1000}, ferry::dtype::u8, [&freed, memory](void*) { freed = true; }, gpu(0))
                       .slice(0, 0, 1000, 2));
    result.wait();
    CHECK_FALSE(freed);
  }
  CHECK(value_read(result.get()) == 44);
  while (!freed) std::this_thread::yield();
  // After a device failure the device no longer reads.
  const ferry_test::captured_log quiet;
  freed = false;
  fake_cuda::fail(fake_cuda::call::memcpy_peer_async, 719, 1);
  const tensor memory = filled(gpu(0), 43);
  tensor given = ferry::from_blob(
      memory.data(), {1000}, ferry::dtype::u8, [&freed](void*) { freed = true; }, gpu(0));
  expect_error(errc::device_failure, "worker1", [&] { group[0].rpc_sync<&same>("worker1", given); });
  CHECK_FALSE(freed);
  given = {};
  fake_cuda::fail_nothing();
  while (!freed) std::this_thread::yield();
}

TEST_CASE("after a device failure no thread waits for another device that reads foreign memory") {
  const ferry_test::captured_log quiet;
  device_group group({map_to("worker1", {{"cuda:0", "cuda:1"}, {"cuda:4", "cuda:5"}}), nullptr});
  std::atomic<bool> near_freed{false};
  std::atomic<bool> far_freed{false};
  ferry::future<void> called;
  {
    const fake_cuda::pause nothing_runs;
    const tensor near = filled(gpu(0), 1);
    const tensor far = filled(gpu(4), 2);
    const auto foreign = [](const tensor& memory, std::atomic<bool>& freed) {
      return ferry::from_blob(
          memory.data(), {1000}, ferry::dtype::u8, [&freed, memory](void*) { freed = true; }, memory.device());
    };
    called = group[0].rpc_async<ignore_both>("worker1", foreign(near, near_freed), foreign(far, far_freed));
    CHECK(group[0].rpc_sync<number>("worker1") == 7);  // the request has been sent by now
    fake_cuda::break_device(1, 700);
    const auto waits = fake_cuda::host_synchronizations();
    // Until both have been polled again, or a thread waits.
    const auto looks = fake_cuda::calls(fake_cuda::call::event_query);
    const auto looked = [&] {
      return fake_cuda::calls(fake_cuda::call::event_query) >= looks + 4 || fake_cuda::host_synchronizations() != waits;
    };
    while (!looked()) std::this_thread::yield();
    CHECK(fake_cuda::host_synchronizations() == waits);
    while (!near_freed) std::this_thread::yield();
    CHECK_FALSE(far_freed);  // this device may still read
  }
  while (!far_freed) std::this_thread::yield();
  called.wait();
  fake_cuda::mend();
  CHECK(group[0].rpc_sync<number>("worker1") == 7);
}

TEST_CASE("a call that waits for a device does not delay other calls") {
  device_group group({map_to("worker1", {{"cuda:0", "cpu"}}), nullptr});
  ferry::future<int> waiting;
  {
    const fake_cuda::pause nothing_runs;
    waiting = group[0].rpc_async<device_of>("worker1", filled(gpu(0), 3));
    CHECK(group[0].rpc_sync<number>("worker1") == 7);
    CHECK_FALSE(waiting.ready());
    // Cancelled before it has arrived: it is neither lost nor run.
    ferry::future<int> unwanted = group[0].rpc_async<device_of>("worker1", filled(gpu(0), 3));
    unwanted.cancel();
    expect_error(errc::call_cancelled, "", [&] { unwanted.get(); });
  }
  CHECK(waiting.get() == -1);
}

TEST_CASE("[row 200] [row 202] two devices, identity and swap, to a peer") {
  for (const device_map& map : {identity, swapped}) {
    device_group group({[&](auto& o) {
                          for (const auto& [from, to] : map) o.set_device_map("worker1", {{from, to}});
                        },
                        nullptr});
    in_every_order([&](unsigned char value) {
      const auto other = static_cast<unsigned char>(value + 100);
      for (const bool blocking : {true, false}) {
        const auto back = call<crossed>(group[0], blocking, "worker1", filled(gpu(0), value), filled(gpu(1), other));
        CHECK(back.at(0).device() == gpu(1));
        CHECK(back.at(1).device() == gpu(0));
        CHECK(value_read(back.at(0)) == other);
        CHECK(value_read(back.at(1)) == value);
      }
    });
  }
}

TEST_CASE("[row 201] [row 202] two devices, identity and swap, to itself") {
  for (const device_map& map : {identity, swapped}) {
    device_group group({map_to("worker0", map)});
    in_every_order([&](unsigned char value) {
      const auto other = static_cast<unsigned char>(value + 100);
      for (const bool blocking : {true, false}) {
        const auto back = call<crossed>(group[0], blocking, "worker0", filled(gpu(0), value), filled(gpu(1), other));
        CHECK(back.at(0).device() == gpu(1));
        CHECK(value_read(back.at(0)) == other);
        CHECK(value_read(back.at(1)) == value);
      }
    });
  }
}

TEST_CASE("[row 204] four results on four devices come back by a rotated map, from a peer and from itself") {
  const device_map rotated{{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:2"}, {"cuda:2", "cuda:3"}, {"cuda:3", "cuda:0"}};
  for (const std::string target : {"worker0", "worker1"}) {
    device_group group({map_to(target, rotated), nullptr});
    in_every_order([&](unsigned char) {
      const auto back = group[0].rpc_sync<on_four>(target);
      REQUIRE(back.size() == 4);
      for (int i = 0; i != 4; ++i) {
        const tensor& each = back[static_cast<std::size_t>(i)];
        CHECK(each.device() == gpu((i + 3) % 4));
        CHECK(value_read(each) == 10 + i);
      }
    });
  }
}

TEST_CASE("[row 205] [row 206] a tensor without a map is an error at once, any number of times") {
  device_group group({nullptr, nullptr});
  const tensor t = filled(gpu(0), 1);
  for (int i = 0; i != 12; ++i) {  // more often than there are threads
    expect_error(errc::bad_device, "Request device mapping is not available for destination worker1",
                 [&] { group[0].rpc_sync<ignore>("worker1", t); });
    expect_error(errc::bad_device, "Request device mapping is not available for destination worker1",
                 [&] { (void)group[0].rpc_async<ignore>("worker1", t); });
  }
  CHECK(group[0].rpc_sync<number>("worker1") == 7);
}

TEST_CASE("[row 208] a result without a map is the error of the call, any number of times") {
  const ferry_test::captured_log quiet;
  device_group group({nullptr, nullptr});
  for (int i = 0; i != 12; ++i) {
    for (const bool blocking : {true, false}) {
      expect_error(errc::bad_device, "Response device mapping is not available",
                   [&] { call<made_on>(group[0], blocking, "worker1", 0, 1); });
    }
  }
  CHECK(group[0].rpc_sync<number>("worker1") == 7);
}

TEST_CASE("[row 212] what a handler throws for tensors on devices reaches the caller") {
  const ferry_test::captured_log quiet;
  device_group group({map_to("worker1", identity), nullptr});
  for (const bool blocking : {true, false}) {
    CHECK_THROWS_WITH_AS(call<fails_on>(group[0], blocking, "worker1", filled(gpu(1), 1)),
                         doctest::Contains("expected all tensors on cuda:5, found one on cuda:1"),
                         std::invalid_argument);
  }
}

TEST_CASE("[row 213] [row 214] a handler may work on a stream of its own, also many concurrently") {
  device_group group({map_to("worker1", swapped), nullptr});
  in_every_order([&](unsigned char value) {
    CHECK(value_read(group[0].rpc_sync<on_own_stream>("worker1", filled(gpu(0), value))) == value);
    std::vector<ferry::future<tensor>> coming;
    for (int i = 0; i != 20; ++i) {
      coming.push_back(
          group[0].rpc_async<on_own_stream>("worker1", filled(gpu(i % 2), static_cast<unsigned char>(value + i))));
    }
    for (int i = 0; i != 20; ++i) CHECK(value_read(coming[static_cast<std::size_t>(i)].get()) == value + i);
  });
}

TEST_CASE("a handler has its own current streams on every device of its worker, which are restored afterwards") {
  device_group group({map_to("worker1", swapped), nullptr});
  const stream before = ferry::current_stream(gpu(0));
  CHECK(group[0].rpc_sync<has_streams_of_its_own>("worker1", 2));
  CHECK(group[0].rpc_sync<has_streams_of_its_own>("worker0", 2));
  CHECK_FALSE(group[0].rpc_sync<has_streams_of_its_own>("worker1", 3));
  CHECK(ferry::current_stream(gpu(0)) == before);
}

TEST_CASE("arguments are read, and the result is available, in the order of the streams of call_options") {
  device_group group({map_to("worker1", swapped), nullptr});
  in_every_order([&](unsigned char value) {
    const stream side = ferry::pool_stream(gpu(0));
    tensor t;
    {
      const ferry::stream_guard guard(side);
      t = filled(gpu(0), value);
    }
    const tensor back = group[0].rpc_sync<&second_of>({"worker1", {.streams = side}}, t);
    {
      const ferry::stream_guard guard(side);
      CHECK(value_read(back) == value);
    }
  });
}

TEST_CASE("[row 225] a callback has streams that wait for its value, and users of its result wait for these streams") {
  device_group group({map_to("worker1", identity), nullptr});
  in_every_order([&](unsigned char value) {
    const ferry::future<tensor> child =
        group[0].rpc_async<&second_of>("worker1", filled(gpu(0), value)).then([](const tensor& first) {
          const stream here = ferry::current_stream(gpu(1));  // to another device
          const std::array<std::int64_t, 1> strides{1};
          tensor there = ferry::empty_packed(ferry::dtype::u8, first.shape(), strides, gpu(1));
          here.wait(ferry::current_stream(gpu(0)));
          first.storage().record_use(here);
          ferry::operations_of(ferry::device_kind::cuda)
              .copy(gpu(1), ferry::writable_packed_bytes(there).data(), gpu(0), ferry::packed_bytes(first).data(),
                    ferry::packed_bytes(first).size(), gpu(1), here.handle());
          return there;
        });
    const tensor got = child.get();
    CHECK(got.device() == gpu(1));
    CHECK(value_read(got) == value);
  });
}

TEST_CASE("a promise records the streams of the thread that sets it, for tensors anywhere in the value") {
  in_every_order([&](unsigned char value) {
    const stream side = ferry::pool_stream(gpu(2));
    ferry::promise<std::vector<std::pair<int, tensor>>> promise;
    {
      const ferry::stream_guard guard(side);
      promise.set_value(std::vector<std::pair<int, tensor>>{{1, filled(gpu(2), value)}, {2, tensor()}});
    }
    const auto got = promise.get_future().get();
    CHECK(value_read(got.at(0).second) == value);
  });
}

TEST_CASE("[row 229] changing or dropping a tensor after its future is complete is safe") {
  ferry::promise<tensor> promise;
  const ferry::future<tensor> future = promise.get_future();
  {
    const stream side = ferry::pool_stream(gpu(2));
    const ferry::stream_guard guard(side);
    tensor t = filled(gpu(2), 1);
    promise.set_value(t);
    ferry::operations_of(ferry::device_kind::cuda)
        .fill(gpu(2), ferry::writable_packed_bytes(t).data(), 2, static_cast<std::size_t>(t.numel()), side.handle());
    t = filled(gpu(2), 3);
  }
  CHECK_NOTHROW(future.wait());
  tensor taken = future.get();
  taken = {};
  CHECK_NOTHROW(future.wait());
  fake_cuda::drain();
}

TEST_CASE("[row 228] handlers that are futures and coroutines, with calls of their own") {
  device_group group({map_to("worker1", swapped), map_to("worker0", swapped)});
  in_every_order([&](unsigned char value) {
    for (const bool blocking : {true, false}) {
      CHECK(value_read(call<in_steps>(group[0], blocking, "worker1", filled(gpu(0), value))) == value);
      CHECK(value_read(call<relayed>(group[0], blocking, "worker1", filled(gpu(1), value))) == value);
    }
  });
}

// As a timer or a client of another library has it: it resumes on a thread that knows nothing of the call.
struct other_thread {
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiter) const {
    std::thread([waiter] { waiter.resume(); }).detach();
  }
  void await_resume() const noexcept {}
};
ferry::task<tensor> work_between_threads(tensor t) {
  const stream of_call = ferry::current_stream(t.device());
  const ferry::worker_id caller = ferry::this_call().caller();
  for (int i = 0; i != 3; ++i) {
    t = duplicate(t);
    co_await other_thread();
    if (ferry::current_stream(t.device()) != of_call) throw std::logic_error("not on the stream of the call");
    if (ferry::this_call().caller() != caller) throw std::logic_error("not in the call");
  }
  co_return duplicate(t);
}

TEST_CASE("a handler's coroutine keeps its call and its streams after awaitables of other libraries") {
  device_group group({map_to("worker1", {{"cuda:0", "cuda:0"}}), map_to("worker0", {{"cuda:0", "cuda:0"}})});
  for (unsigned char value = 1; value != 20; ++value)
    CHECK(value_read(group[0].rpc_sync<work_between_threads>("worker1", filled(gpu(0), value))) == value);
}

TEST_CASE("a device's lack of memory or failure is the error of the call, and nothing leaks") {
  const ferry_test::captured_log quiet;
  const auto in_use = [] {
    settle();
    return fake_cuda::blocks_in_use(0) + fake_cuda::blocks_in_use(1);
  };
  const auto before = in_use();
  device_group group({map_to("worker1", {{"cuda:0", "cuda:1"}, {"cuda:2", "cpu"}}), nullptr});
  CHECK(value_read(group[0].rpc_sync<&second_of>("worker1", filled(gpu(0), 1))) == 1);
  CHECK(value_read(group[0].rpc_sync<&same>("worker1", filled(gpu(2), 1))) == 1);
  constexpr int no_memory = 2;
  constexpr int launch_failure = 719;
  for (const bool blocking : {true, false}) {
    {
      const tensor t = filled(gpu(0), 1);
      // However often it is tried again, after trims and from the other pool.
      for (unsigned nth = 1; nth != 64; ++nth) fake_cuda::fail(fake_cuda::call::malloc_from_pool_async, no_memory, nth);
      expect_error(errc::out_of_memory, "worker1", [&] { call<same>(group[0], blocking, "worker1", t); });
      fake_cuda::fail_nothing();
      fake_cuda::fail(fake_cuda::call::memcpy_peer_async, launch_failure, 1);
      expect_error(errc::device_failure, "worker1", [&] { call<same>(group[0], blocking, "worker1", t); });
      fake_cuda::fail(fake_cuda::call::memcpy_peer_async, launch_failure, 2);  // on the way back
      expect_error(errc::device_failure, "the tensors of the result could not be received",
                   [&] { call<same>(group[0], blocking, "worker1", t); });
      fake_cuda::fail_nothing();
      CHECK(value_read(call<same>(group[0], blocking, "worker1", t)) == 1);
    }
    // A handler releases its arguments after its answer was sent.
    const auto limit = std::chrono::steady_clock::now() + 60s;
    while (in_use() != before && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    CHECK(in_use() == before);
  }
  for (int i = 0; i != 12; ++i) CHECK(group[0].rpc_sync<number>("worker1") == 7);
}

TEST_CASE("a device that fails before tensors have left it ends the call") {
  const ferry_test::captured_log quiet;
  device_group group({map_to("worker1", {{"cuda:7", "cpu"}}), nullptr});
  ferry::future<int> waiting;
  {
    const fake_cuda::pause nothing_runs;
    waiting = group[0].rpc_async<device_of>("worker1", filled(gpu(7), 3));
    CHECK(group[0].rpc_sync<number>("worker1") == 7);
    fake_cuda::break_device(7, 700);
    expect_error(errc::device_failure, "cuda:7", [&] { waiting.get(); });
  }
  fake_cuda::mend();
  CHECK(group[0].rpc_sync<number>("worker1") == 7);
}

TEST_CASE("a scope of streams skips devices that do not exist, and only these") {
  ferry_test::captured_log quiet;
  const std::array streams{ferry::detail::stream_of(gpu(9999), nullptr), ferry::pool_stream(gpu(2))};
  const stream before = ferry::current_stream(gpu(2));
  {
    const ferry::detail::streams_scope scope(streams);
    CHECK(ferry::current_stream(gpu(2)) == streams[1]);
  }
  CHECK(ferry::current_stream(gpu(2)) == before);
  CHECK(quiet.has("cuda:9999"));
}

TEST_CASE("tensors on the CPU that hold all page-locked memory do not keep further ones from arriving") {
  device_group group(
      {map_to("worker1", {{"cpu", "cuda:0"}, {"cuda:0", "cpu"}}), map_to("worker0", {{"cuda:0", "cpu"}})});
  constexpr std::int64_t size = std::int64_t{1} << 20;
  CHECK(group[1].rpc_sync<&device_of>("worker0", filled(gpu(0), 1, size)) == -1);
  fake_cuda::drain();
  const auto reserved = [] { return ferry::get_staging_memory_stats(ferry::device_kind::cuda).reserved_bytes; };
  const auto before = reserved();
  ferry::detail::set_pinned_memory_budget(before + 2 * static_cast<std::size_t>(size));
  for (unsigned char value = 1; value != 40; ++value) {
    (void)group[1].rpc_sync<&keep_here>("worker0", filled(gpu(0), value, size));
  }
  CHECK(kept_here().size() == 39);
  for (std::size_t i = 0; i != kept_here().size(); ++i) CHECK(value_of(kept_here()[i]) == static_cast<int>(i + 1));
  // Those that found no more memory came through two pieces.
  CHECK(reserved() <= before + 4 * static_cast<std::size_t>(size));
  kept_here().clear();
  ferry::detail::set_pinned_memory_budget(std::size_t{256} << 20);
}

}  // namespace device_calls_test
