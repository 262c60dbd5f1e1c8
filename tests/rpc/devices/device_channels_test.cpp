// Calls with tensors on devices over sockets: the workers are in one process, but only use socket transports.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <device/memory/pinned_memory.hpp>

#include "captured_log.hpp"
#include "device_group.hpp"
#include "expect_error.hpp"
#include "left_out.hpp"
#include "sanitizers.hpp"

namespace device_channels_test {

using namespace std::chrono_literals;
using namespace device_calls;
using ferry::device;
using ferry::device_map;
using ferry::errc;
using ferry::stream;
using ferry::tensor;

tensor same(tensor t) { return t; }
tensor second_of(const tensor& t) { return duplicate(t); }
tensor kept_twice(const tensor& t) {
  (void)keep(t);
  return keep(duplicate(t));
}
int device_of(const tensor& t) { return t.device().is_cpu() ? -1 : t.device().index; }
std::int64_t size_of(const tensor& t) { return t.numel(); }
int number() { return 7; }
std::vector<tensor> reversed(const std::vector<tensor>& all) { return {all.rbegin(), all.rend()}; }
tensor made_on(int index, int value, std::int64_t bytes) {
  return filled(gpu(index), static_cast<unsigned char>(value), bytes);
}

namespace {

const device_map swapped{{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}};
constexpr std::int64_t piece = ferry::staging_piece;

prepare over(const std::string& transport, const device_map& map = {}) {
  return [=](native_options& options) {
    options.transports = {transport};
    if (!map.empty()) options.set_device_map("worker1", map);
  };
}

// The memory in use. comes_back_to() also waits for memory that is released in stream order.
struct leases {
  std::uint64_t staging = 0;
  std::vector<std::size_t> blocks;
  [[nodiscard]] bool no_more_than(const leases& other) const {
    return staging <= other.staging &&
           std::equal(blocks.begin(), blocks.end(), other.blocks.begin(), std::less_equal<>());
  }
};
leases held() {
  leases now;
  now.staging = ferry::get_staging_memory_stats(ferry::device_kind::cuda).blocks_in_use;
  for (int i = 0; i != 8; ++i) {
    (void)ferry::get_device_memory_stats(gpu(i));  // frees what is parked and done
    now.blocks.push_back(fake_cuda::blocks_in_use(i));
  }
  return now;
}
bool comes_back_to(const leases& before, bool blocks = true) {
  for (const auto until = std::chrono::steady_clock::now() + 30s; std::chrono::steady_clock::now() < until;) {
    fake_cuda::drain();
    leases now = held();
    if (!blocks) now.blocks = before.blocks;
    if (now.no_more_than(before)) return true;
    std::this_thread::yield();
  }
  const leases now = held();
  MESSAGE("staging ", before.staging, " -> ", now.staging);
  for (std::size_t i = 0; i != 8; ++i) {
    if (now.blocks[i] != before.blocks[i]) MESSAGE("cuda:", i, ": ", before.blocks[i], " -> ", now.blocks[i]);
  }
  return false;
}

}  // namespace

TEST_CASE("arguments arrive on the mapped device over a socket, and results come back by the inverse map") {
  for (const char* transport : {"tcp", "unix", "shm"}) {
    device_group group({over(transport, swapped), over(transport)});
    for (const auto how : {fake_cuda::schedule::newest_first, fake_cuda::schedule::random}) {
      fake_cuda::set_schedule(how);
      for (unsigned char value = 1; value != 5; ++value) {
        for (const bool blocking : {true, false}) {
          const tensor t = filled(gpu(0), value);
          CHECK(call<device_of>(group[0], blocking, "worker1", t) == 1);
          const tensor back = call<second_of>(group[0], blocking, "worker1", t);
          CHECK(back.device() == gpu(0));
          CHECK(value_read(back) == value);
        }
      }
    }
    fake_cuda::set_schedule(fake_cuda::schedule::random);
  }
}

TEST_CASE("CPU to device and back, device to CPU and back, over a socket") {
  for (const device_map& map : {device_map{{"cpu", "cuda:3"}}, device_map{{"cuda:2", "cpu"}}}) {
    device_group group({over("tcp", map), over("tcp")});
    const device from = map.begin()->from;
    const device to = map.begin()->to;
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1000}, 3 * piece + 5}) {
      const tensor t = filled(from, 9, bytes);
      CHECK(group[0].rpc_sync<device_of>("worker1", t) == (to.is_cpu() ? -1 : to.index));
      const tensor back = group[0].rpc_sync<second_of>("worker1", t);
      CHECK(back.device() == from);
      CHECK(back.numel() == bytes);
      CHECK(value_read(back) == 9);
    }
  }
}

TEST_CASE("tensors of every size, several in a message, on several devices and on the CPU") {
  device_group group({over("tcp", swapped), over("tcp")});
  const std::vector<std::int64_t> sizes{0, 1, 4096, piece - 1, piece, piece + 1, 5 * piece + 3, 0, 70};
  std::vector<tensor> all;
  unsigned char value = 0;
  for (const std::int64_t bytes : sizes) {
    for (const device where : {gpu(0), host, gpu(1)}) all.push_back(filled(where, ++value, bytes));
  }
  for (int round = 0; round != 2; ++round) {
    const auto back = group[0].rpc_sync<reversed>("worker1", all);
    REQUIRE(back.size() == all.size());
    for (std::size_t i = 0; i != all.size(); ++i) {
      const tensor& one = back[all.size() - 1 - i];
      CHECK(one.device() == all[i].device());
      REQUIRE(one.numel() == all[i].numel());
      if (one.numel() != 0) CHECK(value_read(one) == static_cast<int>(i + 1));
    }
  }
}

TEST_CASE("no host thread waits for a device over a socket, and the staging memory is bounded") {
  device_group group({over("tcp", swapped), over("tcp")});
  const tensor t = filled(gpu(0), 5, 12 * piece);
  const auto reserved = [] { return ferry::get_staging_memory_stats(ferry::device_kind::cuda).reserved_bytes; };
  const auto at_first = reserved();  // by warming up
  CHECK(value_read(group[0].rpc_sync<second_of>("worker1", t)) == 5);
  CHECK(reserved() <= at_first + 4 * ferry::staging_window);  // two connections, both ends
  const auto small = filled(gpu(0), 6);
  CHECK(value_read(group[0].rpc_sync<second_of>("worker1", small)) == 6);
  const auto waits = fake_cuda::host_synchronizations();
  const auto host_functions = fake_cuda::calls(fake_cuda::call::launch_host_func);
  const auto page_locked = fake_cuda::calls(fake_cuda::call::host_alloc);
  for (int i = 0; i != 5; ++i) {
    CHECK(group[0].rpc_async<second_of>("worker1", t).get().numel() == 12 * piece);
    CHECK(group[0].rpc_sync<second_of>("worker1", small).numel() == 1000);
  }
  // The number of blocks in use depends on the progress of the devices; additional blocks are page-locked once.
  const auto more_locked = fake_cuda::calls(fake_cuda::call::host_alloc) - page_locked;
  CHECK(fake_cuda::host_synchronizations() - waits == more_locked);
  // The runtime calls them one at a time, behind those of the program.
  CHECK(fake_cuda::calls(fake_cuda::call::launch_host_func) == host_functions);
  CHECK(reserved() <= at_first + 4 * ferry::staging_window + piece);  // and the small ones
}

TEST_CASE("connections share the budget of page-locked memory, and all get on") {
  device_group group({over("tcp", swapped), over("tcp")});
  fake_cuda::drain();
  const auto reserved = [] { return ferry::get_staging_memory_stats(ferry::device_kind::cuda).reserved_bytes; };
  ferry::detail::set_pinned_memory_budget(std::size_t{2} << 20);
  const auto before = reserved();
  std::vector<ferry::future<tensor>> coming;
  for (int i = 0; i != 4; ++i)
    coming.push_back(group[0].rpc_async<second_of>("worker1", filled(gpu(i % 2), 5, 3 * piece)));
  for (auto& each : coming) CHECK(value_read(each.get()) == 5);
  // A piece for each direction of a connection, and for each message that fetches its first.
  CHECK(reserved() <= before + 10 * static_cast<std::size_t>(piece));
  ferry::detail::set_pinned_memory_budget(std::size_t{256} << 20);
}

TEST_CASE("thousands of small tensors in one message use no more staging memory than a large one") {
  device_group group({over("tcp", swapped), over("tcp")});
  std::vector<tensor> all;
  for (int i = 0; i != 1500; ++i) all.push_back(filled(gpu(i % 2), static_cast<unsigned char>(i % 200 + 1), 8));
  const auto before = ferry::get_staging_memory_stats(ferry::device_kind::cuda).reserved_bytes;
  const auto back = group[0].rpc_sync<reversed>("worker1", all);
  REQUIRE(back.size() == all.size());
  int right = 0;
  for (std::size_t i = 0; i != all.size(); ++i) {
    const tensor& one = back[all.size() - 1 - i];
    if (one.device() == all[i].device() && value_read(one) == static_cast<int>(i % 200 + 1)) ++right;
  }
  CHECK(right == 1500);
  CHECK(ferry::get_staging_memory_stats(ferry::device_kind::cuda).reserved_bytes - before <= 6 * ferry::staging_window);
}

TEST_CASE("a message whose tensors are not ready does not delay other messages") {
  device_group group({over("tcp", swapped), over("tcp")});
  CHECK(value_read(group[0].rpc_sync<second_of>("worker1", filled(gpu(0), 1))) == 1);
  ferry::future<tensor> late;
  {
    const fake_cuda::pause nothing_runs;
    const tensor t = filled(gpu(0), 42, 2 * piece);
    late = group[0].rpc_async<second_of>("worker1", t);
    for (int i = 0; i != 20; ++i) CHECK(group[0].rpc_sync<number>("worker1") == 7);
    CHECK_FALSE(late.ready());
  }
  CHECK(value_read(late.get()) == 42);
}

TEST_CASE("a call that times out or is cancelled releases its memory once the device has finished with it") {
  device_group group({over("tcp", swapped), over("tcp")});
  CHECK(value_read(group[0].rpc_sync<second_of>("worker1", filled(gpu(0), 1, 3 * piece))) == 1);
  CHECK(comes_back_to({0, std::vector<std::size_t>(8, ~std::size_t{0})}));  // the writer has released it
  const leases before = held();
  {
    const fake_cuda::pause nothing_runs;
    const tensor t = filled(gpu(0), 42, 3 * piece);
    expect_error(errc::rpc_timeout, "", [&] { group[0].rpc_sync<second_of>({"worker1", {.timeout = 20ms}}, t); });
    auto unwanted = group[0].rpc_async<second_of>("worker1", t);
    unwanted.cancel();
    expect_error(errc::call_cancelled, "", [&] { unwanted.get(); });
    CHECK(held().staging > before.staging);  // the device may still write there
  }
  CHECK(group[0].rpc_sync<number>("worker1") == 7);
  CHECK(comes_back_to(before));
  CHECK(value_read(group[0].rpc_sync<second_of>("worker1", filled(gpu(0), 2, 3 * piece))) == 2);
}

TEST_CASE("a call that is cancelled before its tensors are ready is not served") {
  device_group group({over("tcp", swapped), over("tcp")});
  CHECK(value_read(group[0].rpc_sync<second_of>("worker1", filled(gpu(0), 1))) == 1);
  std::vector<ferry::future<tensor>> given_up;
  {
    const fake_cuda::pause nothing_runs;
    for (int i = 0; i != 3; ++i) given_up.push_back(group[0].rpc_async<kept_twice>("worker1", filled(gpu(0), 42)));
    for (auto& each : given_up) each.cancel();
    for (auto& each : given_up) expect_error(errc::call_cancelled, "", [&] { each.get(); });
  }
  // Anything that was sent arrives before this.
  CHECK(value_read(group[0].rpc_sync<second_of>("worker1", filled(gpu(0), 2))) == 2);
  CHECK(kept().empty());
}

TEST_CASE("any failing device operation is the error of one call; the connection stays") {
  const ferry_test::captured_log quiet;
  device_group group({over("tcp", swapped), over("tcp")});
  const tensor t = filled(gpu(0), 3, 2 * piece + 100);
  const tensor cpu = filled(host, 4, 3 * piece);
  CHECK(value_read(group[0].rpc_sync<second_of>("worker1", t)) == 3);
  fake_cuda::drain();
  using fake_cuda::call;
  constexpr unsigned first_spared = ferry_test::sanitized ? 5 : 9;  // sanitizers take ten times as long
  unsigned failed = 0;
  for (const call which : {call::memcpy_async, call::malloc_from_pool_async, call::event_query, call::event_record,
                           call::stream_wait_event}) {
    const leases before = held();
    for (unsigned nth = 1; nth != first_spared; ++nth) {
      CAPTURE(static_cast<int>(which));
      CAPTURE(nth);
      const auto beside = group[0].rpc_async<same>("worker1", cpu);  // over the same connection
      fake_cuda::fail(which, which == call::malloc_from_pool_async ? 2 : 719, nth);
      try {
        const tensor back = group[0].rpc_sync<second_of>("worker1", t);
        fake_cuda::fail_nothing();
        CHECK(value_read(back) == 3);
      } catch (const ferry::error& e) {
        fake_cuda::fail_nothing();
        ++failed;
        CHECK_MESSAGE((e.kind() == errc::device_failure || e.kind() == errc::out_of_memory), e.what());
      }
      CHECK(value_of(beside.get()) == 4);
      CHECK(value_read(group[0].rpc_sync<second_of>("worker1", t)) == 3);
    }
    // Memory whose last use could not be marked is leaked rather than reused.
    const bool may_lose = which == call::event_record || which == call::stream_wait_event;
    CHECK(comes_back_to(before, !may_lose));
  }
  // Each of the copies, and of the other operations those that a call needs: how often devices are asked depends on time.
  CHECK(failed > (first_spared - 1) * 3 / 2);
}

TEST_CASE("a call whose device hangs ends at its limit, and a call behind it on the connection is answered") {
  const auto limited = [](native_options& options) {
    options.transports = {"tcp"};
    options.transport.device_timeout = 300ms;
    options.set_device_map("worker1", {{"cpu", "cuda:1"}});
  };
  device_group group({limited, [](native_options& options) {
                        options.transports = {"tcp"};
                        options.transport.device_timeout = 300ms;
                      }});
  const tensor large = filled(host, 5, 6 * piece);
  CHECK(group[0].rpc_sync<size_of>("worker1", large) == 6 * piece);
  fake_cuda::drain();
  const leases before = held();
  for (int round = 0; round != 2; ++round) {
    {
      const fake_cuda::pause nothing_runs;
      const auto stuck = group[0].rpc_async<size_of>("worker1", large);
      const auto behind = group[0].rpc_async<number>("worker1");
      CHECK(behind.get() == 7);
      expect_error(errc::device_timeout, "copies to cuda:1 made no progress for 0.3 s", [&] { (void)stuck.get(); });
    }
    CHECK(comes_back_to(before));
    CHECK(group[0].rpc_sync<size_of>("worker1", large) == 6 * piece);
  }
}

TEST_CASE("route() reports the transport, the channel of each pair of devices, and why better ones are not used") {
  device_group group({[](native_options& options) {
                        options.transports = {"inproc", "tcp"};
                        options.set_device_map("worker1", {{"cuda:0", "cuda:1"}, {"cuda:2", "cpu"}});
                      },
                      [](native_options& options) { options.transports = {"tcp"}; }});
  CHECK(group[0].route("worker1").transport.empty());
  CHECK(to_string(group[0].route("worker1")) == "no connection is open");
  CHECK(group[0].rpc_sync<number>("worker1") == 7);
  const ferry::route_info route = group[0].route("worker1");
  CHECK(route.transport == "tcp");
  REQUIRE(route.skipped.size() == 1);
  CHECK(route.skipped[0].name == "inproc");
  CHECK(route.skipped[0].reason == "the peer has no address for it");
  REQUIRE(route.devices.size() == 3);
  CHECK(route.devices[0].channel == "inline");
  for (const std::size_t i : {1U, 2U}) {
    CHECK(route.devices[i].channel == "cuda_staged");
    REQUIRE(route.devices[i].skipped.size() == 4);
    CHECK(route.devices[i].skipped[0].name == "inproc");
    CHECK(route.devices[i].skipped[1].name == "cuda_ipc");
    CHECK(route.devices[i].skipped[2].name == "shm");
    CHECK(route.devices[i].skipped[3].name == "inline");
  }
  CHECK(route.devices[1].from == gpu(0));
  CHECK(route.devices[1].to == gpu(1));
  const std::string text = to_string(route);
  CHECK_MESSAGE(text.find("cuda:2 -> cpu: cuda_staged (not inproc: ") != text.npos, text);
  expect_error(errc::unknown_worker, "missing", [&] { (void)group[0].route("missing"); });

  device_group within({map_to("worker1", swapped), nullptr});
  CHECK(within[0].rpc_sync<number>("worker1") == 7);
  CHECK(within[0].route("worker1").transport == "inproc");
  CHECK(within[0].route("worker1").devices.at(1).channel == "inproc");
  CHECK(within[0].route("worker1").devices.at(1).skipped.empty());
}

TEST_CASE("with any one event not recorded, or not waited for, stale data is read, also over a socket") {
  device_group group({over("tcp", {{"cuda:0", "cuda:1"}}), over("tcp")});
  unsigned char value = 0;
  std::uint64_t made = 0;
  // Whether the caller gets the right value.
  const auto right = [&](fake_cuda::schedule how, fake_cuda::call what, unsigned nth) {
    fake_cuda::set_schedule(how);
    value = static_cast<unsigned char>(value % 100 + 1);
    const stream side = ferry::pool_stream(gpu(0));
    const ferry::stream_guard guard(side);
    auto nothing_runs = std::make_unique<fake_cuda::pause>();
    bool as_expected = false;
    {
      const tensor sent = keep(filled(gpu(0), value));
      left_out one(what, nth);
      one.arm();
      const auto result = group[0].rpc_async<kept_twice>("worker1", sent);
      nothing_runs.reset();  // the bytes of a tensor leave a device only once its stream reaches the copy
      const tensor got = keep(result.get());
      one.disarm();
      made = one.made();
      as_expected = value_read(got) == value;
    }
    release_kept();
    fake_cuda::drain();
    return as_expected;
  };
  constexpr std::array orders{fake_cuda::schedule::newest_first, fake_cuda::schedule::oldest_first,
                              fake_cuda::schedule::random};
  for (const auto which : {fake_cuda::call::event_record, fake_cuda::call::stream_wait_event}) {
    for (const auto how : orders) CHECK(right(how, which, 0));
    if (which == fake_cuda::call::stream_wait_event) CHECK(made == 3);  // for the argument, the result, the caller
    if (races_are_errors) continue;
    std::set<unsigned> noticed;
    // The devices must be slower than the host to reveal it; how much slower is unknown.
    for (const unsigned delay : {2'000U, 16'000U, 64'000U}) {
      fake_cuda::set_delay(delay);
      for (unsigned nth = 1; nth <= (which == fake_cuda::call::stream_wait_event ? 3 : 16); ++nth) {
        if (noticed.size() >= 3) break;
        for (int round = 0; round != 10 && !noticed.contains(nth); ++round) {
          for (const auto how : orders) {
            if (right(how, which, nth)) continue;
            noticed.insert(nth);
            break;
          }
        }
      }
    }
    CAPTURE(static_cast<int>(which));
    CHECK(noticed.size() >= 3);  // the other marks are about memory, and about devices that fail
  }
  fake_cuda::set_schedule(fake_cuda::schedule::random);
  fake_cuda::set_delay(200);
}

}  // namespace device_channels_test
