// References to objects whose tensors are on devices: each use is ordered after all work queued on the object before.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "device_group.hpp"
#include "expect_error.hpp"
#include "tests/rpc/references/table/references.hpp"
#include "tests/rpc/worker/dynamic_group.hpp"

namespace device_references_test {

using namespace device_calls;
using ferry::errc;
using ferry::rref;
using ferry::stream;
using ferry::tensor;

tensor of_value(int device, int value) { return ferry::full({50}, value, ferry::dtype::f32, gpu(device)); }
float value_at(const tensor& t) { return t.to(host).at<float>(49); }

// Neither sendable nor copyable, with opaque members. Its calls may overlap: the lock orders the queueing, and each
// stream waits for the work that the previous call queued.
class model {
 public:
  model(int device, int weight) : weight_(of_value(device, 0)) {
    for (int i = 0; i != weight; ++i) weight_ = weight_ + 1;  // some work
  }
  tensor forward(const tensor& x) {
    return in_turn([&] { return (x * 1.0) * weight_ + bias_; });
  }
  tensor forward_of(const rref<tensor>& x) { return forward(x.to_here()); }
  // On its own device, whatever device the tensor is mapped to for others.
  tensor forward_of_own(const rref<tensor>& x) { return forward(x.local_value()); }
  void grow(int by) {
    (void)in_turn([&] { return ferry::add_(weight_, by); });
  }
  tensor weight() {
    return in_turn([&] { return weight_ * 1.0; });
  }

 private:
  template <class F>
  tensor in_turn(const F& queue) {
    const std::lock_guard lock(mutex_);
    const stream own = ferry::current_stream(weight_.device());
    own.wait(last_);
    tensor result = queue();
    last_.record(own);
    return result;
  }

  std::mutex mutex_;
  std::condition_variable unused_condition_;
  std::thread unused_thread_;
  tensor weight_;
  ferry::event last_;
  int bias_ = 1;
};

// A tensor that programs use with their own kernels, which do not record their stream with the memory.
class cell {
 public:
  cell(int device, int value) : memory_(filled(gpu(device), static_cast<unsigned char>(value))) {}
  static int alive() { return counted::alive; }
  void set(int value) { set_tensor(memory_, value); }
  static void set_tensor(const tensor& t, int value) {
    const stream on = ferry::current_stream(t.device());
    ferry::operations_of(t.device().kind)
        .fill(t.device(), t.data(), static_cast<unsigned char>(value), static_cast<std::size_t>(t.numel()),
              on.handle());
  }
  tensor get() const { return duplicate(memory_); }
  tensor memory() const { return memory_; }
  int value() const { return value_of(memory_); }
  void replace(int value) { memory_ = filled(memory_.device(), static_cast<unsigned char>(value)); }
  void copy_from(const rref<cell>& other) { memory_ = duplicate(other.local_value().memory_); }

 private:
  struct counted {
    counted() { ++alive; }
    counted(const counted&) = delete;
    counted& operator=(const counted&) = delete;
    ~counted() { --alive; }
    static inline std::atomic<int> alive{0};
  };
  counted counted_;  // destroyed after the memory
  tensor memory_;
};
// Its calls run one at a time, and release their turn while they wait.
class shared_cell : public cell {
 public:
  using cell::cell;
  ferry::task<tensor> set_around_a_call(int value, std::string other);
  tensor set_around_a_wait(int value, const std::string& other);
};

void set_at(const rref<cell>& there, int value) { there.local_value().set(value); }
tensor get_at(const rref<cell>& there) { return there.local_value().get(); }
ferry::task<tensor> get_at_later(rref<cell> there, std::string other);
int number() { return 7; }
std::vector<tensor>& kept() {
  static std::vector<tensor> all;
  return all;
}
int keep(const tensor& t) {
  kept().push_back(duplicate(t));
  return 7;
}
int keep_and_fail(const tensor& t) {
  kept().push_back(duplicate(t));
  throw std::runtime_error("for a test");
}

tensor relay(const rref<model>& by, const rref<tensor>& x) { return by.remote<&model::forward_of>(x).to_here(); }
rref<tensor> relay_reference(const rref<model>& by, const rref<tensor>& x) { return by.remote<&model::forward_of>(x); }

struct named_tensor {
  std::string name;
  rref<int> first;
  tensor second;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, first, second);
  }
};

tensor view_of_big(int device, int value) {
  return (ferry::full({100, 300}, value, ferry::dtype::f32, gpu(device)) * 2).select(1, 7);
}
tensor made_on(int index, int value) { return filled(gpu(index), static_cast<unsigned char>(value)); }
int device_of(const tensor& t) { return t.device().is_cpu() ? -1 : t.device().index; }

ferry::task<tensor> shared_cell::set_around_a_call(int value, std::string other) {
  set(value);
  (void)co_await ferry::rpc_async<number>(other);
  co_return get();
}
tensor shared_cell::set_around_a_wait(int value, const std::string& other) {
  set(value);
  (void)ferry::rpc_sync<number>(other);
  return get();
}
ferry::task<tensor> get_at_later(rref<cell> there, std::string other) {
  (void)co_await ferry::rpc_async<number>(other);
  co_return there.local_value().get();
}

}  // namespace device_references_test

template <>
struct ferry::object_traits<device_references_test::shared_cell> {
  static constexpr auto execution = ferry::execution::exclusive;
  static constexpr bool reentrant = true;
};

namespace device_references_test {

namespace {

template <class F>
void in_every_order(F&& run, int rounds = 4) {
  for (const auto how : {fake_cuda::schedule::newest_first, fake_cuda::schedule::random}) {
    fake_cuda::set_schedule(how);
    for (int round = 0; round != rounds; ++round) run(1 + round);
  }
  fake_cuda::set_schedule(fake_cuda::schedule::random);
}

// Worker 0 has its tensors on `here`, the other ones on `there`.
std::vector<prepare> all_to_all(int workers, int here, int there, bool declared = false) {
  std::vector<prepare> result;
  for (int self = 0; self != workers; ++self) {
    result.emplace_back([=](native_options& options) {
      const auto own = [&](int worker) { return worker == 0 ? gpu(here) : gpu(there); };
      for (int other = 0; other != workers; ++other) {
        options.set_device_map(ferry_test::worker_name(other), {{own(self), own(other)}});
      }
      if (declared) options.set_devices({own(self)});
    });
  }
  return result;
}

}  // namespace

TEST_CASE("[row 209] a result that is left on its device is fetched by the inverse map") {
  device_group group({map_to("worker1", {{"cuda:1", "cuda:0"}}), nullptr});
  in_every_order([&](int value) {
    const auto left = group[0].remote<made_on>("worker1", 0, value);
    const tensor got = left.to_here();
    CHECK(got.device() == gpu(1));
    CHECK(value_read(got) == value);
    CHECK(value_read(left.to_here_async().get()) == value);
  });
}

TEST_CASE("[row 216] calling a model through its reference, with results left there, gives the same values as a call") {
  for (const auto& [here, there] : {std::pair(0, 0), std::pair(0, 1), std::pair(1, 0), std::pair(1, 1)}) {
    CAPTURE(here);
    CAPTURE(there);
    device_group group(all_to_all(2, here, there));
    for (const std::string target : {"worker1", "worker0"}) {
      const int at = target == "worker0" ? here : there;
      for (int round = 0; round != 10; ++round) {
        const auto net = group[0].remote<ferry::make<model>>(target, at, 5);
        const tensor x = of_value(here, round) * 3;
        const auto left = net.remote<&model::forward>(x);
        const tensor called = net.rpc_sync<&model::forward>(x);
        const tensor fetched = left.to_here();
        CHECK(fetched.device() == gpu(here));
        CHECK(value_at(fetched) == 15.F * static_cast<float>(round) + 1);
        CHECK(value_at(called) == 15.F * static_cast<float>(round) + 1);
        CHECK(value_at(net.rpc_async<&model::forward>(x).get()) == 15.F * static_cast<float>(round) + 1);
      }
    }
  }
}

TEST_CASE("[row 217] a tensor behind a reference among the arguments is fetched inside the handler") {
  struct setting {
    int here;
    int there;
    bool declared;
  };
  for (const auto& [here, there, declared] :
       {setting{0, 0, false}, setting{0, 1, false}, setting{1, 0, false}, setting{1, 1, false}, setting{0, 1, true}}) {
    CAPTURE(here);
    CAPTURE(there);
    device_group group(all_to_all(2, here, there, declared));
    for (int round = 0; round != 10; ++round) {
      const auto expected = 10.F * static_cast<float>(round) + 1;
      const auto net = group[0].remote<ferry::make<model>>("worker1", there, 5);
      const auto of_caller = group[0].make_rref(of_value(here, round) * 2);
      CHECK(value_at(net.rpc_sync<&model::forward_of>(of_caller)) == expected);
      CHECK(value_at(net.remote<&model::forward_of>(of_caller).to_here()) == expected);
      const auto of_callee = group[0].remote<of_value>("worker1", there, 2 * round);
      CHECK(value_at(net.rpc_sync<&model::forward_of>(of_callee)) == expected);
      CHECK(value_at(net.rpc_sync<&model::forward_of_own>(of_callee)) == expected);
    }
  }
}

TEST_CASE("[row 218] a third worker relays a model's result for a tensor, both behind references") {
  for (const auto& [here, there] : {std::pair(0, 0), std::pair(0, 1), std::pair(1, 0), std::pair(1, 1)}) {
    CAPTURE(here);
    CAPTURE(there);
    device_group group(all_to_all(3, here, there));
    for (int round = 0; round != 10; ++round) {
      const auto expected = 10.F * static_cast<float>(round) + 1;
      const auto net = group[0].remote<ferry::make<model>>("worker1", there, 5);
      const auto x = group[0].make_rref(of_value(here, round) * 2);
      CHECK(value_at(group[0].rpc_sync<relay>("worker2", net, x)) == expected);
      CHECK(value_at(group[0].rpc_sync<relay_reference>("worker2", net, x).to_here()) == expected);
      CHECK(value_at(group[0].remote<relay>("worker2", net, x).to_here()) == expected);
    }
  }
}

TEST_CASE("[row 220] a view of a tensor that is still being computed is taken in stream order") {
  device_group group({map_to("worker1", {{"cuda:0", "cuda:1"}}), nullptr});
  in_every_order([&](int value) {
    CHECK(value_at(group[0].rpc_sync<view_of_big>("worker1", 1, value)) == static_cast<float>(2 * value));
    const auto left = group[0].remote<view_of_big>("worker1", 1, value);
    CHECK(value_at(left.to_here()) == static_cast<float>(2 * value));
  });
}

TEST_CASE("[row 230] an object with locks and threads beside its tensors is ordered like any other") {
  device_group group({map_to("worker1", {{"cuda:0", "cuda:1"}}), nullptr});
  in_every_order([&](int value) {
    const auto there = group[0].remote<ferry::make<model>>("worker1", 1, 2);
    there.notify<&model::grow>(value);
    there.notify<&model::grow>(0);
    (void)there.rpc_sync<&model::grow>(1);
    // The one-way calls may be overtaken; each of them counts once.
    references_test::await([&] { return value_at(there.rpc_sync<&model::weight>()) == static_cast<float>(3 + value); });
    rref<model> here(std::in_place, 0, value);
    CHECK(value_at(here.local_value().forward(of_value(0, 2))) == static_cast<float>(2 * value + 1));
  });
}

TEST_CASE("methods and direct users of the object are ordered on the devices, and no thread waits") {
  device_group group({map_to("worker1", {{"cuda:0", "cuda:1"}}), nullptr});
  (void)group[0].rpc_sync<made_on>("worker1", 1, 1);
  in_every_order([&](int value) {
    const auto there = group[0].remote<ferry::make<cell>>("worker1", 1, 99);
    there.created().get();
    const auto waits = fake_cuda::host_synchronizations();
    tensor first;
    tensor second;
    tensor third;
    tensor fourth;
    {
      const fake_cuda::pause nothing_runs;
      there.rpc_sync<&cell::set>(value);
      first = duplicate(there.rpc_sync<&cell::get>());
      group[0].rpc_sync<set_at>("worker1", there, value + 1);
      second = duplicate(group[0].rpc_sync<get_at>("worker1", there));
      there.rpc_sync<&cell::set>(value + 2);
      third = duplicate(there.rpc_sync<&cell::memory>());
      there.rpc_sync<&cell::set>(value + 3);
      fourth = duplicate(group[0].rpc_sync<get_at_later>("worker1", there, "worker0"));
      there.rpc_sync<&cell::set>(value + 4);
    }
    CHECK(value_of(first) == value);
    CHECK(value_of(second) == value + 1);
    CHECK(value_of(third) == value + 2);  // read before it was written again
    CHECK(value_of(fourth) == value + 3);
    CHECK(there.rpc_sync<&cell::value>() == value + 4);
    CHECK(fake_cuda::host_synchronizations() == waits);
  });
}

TEST_CASE("at the owner: direct use or a copy of the object on separate streams") {
  device_group group({map_to("worker0", {{0, 0}})});
  in_every_order([&](int value) {
    const stream side = ferry::pool_stream(gpu(0));
    tensor itself;
    tensor copy;
    tensor copy_on_side;
    tensor by_handler;
    const auto whole = group[0].remote<made_on>("worker0", 0, value);
    whole.created().get();
    {
      const fake_cuda::pause nothing_runs;
      rref<cell> own;
      {
        const ferry::stream_guard guard(ferry::pool_stream(gpu(0)));
        own = group[0].make_rref<cell>(std::in_place, 0, value);
      }
      const tensor taken = whole.to_here({.streams = side});
      const ferry::stream_guard guard(side);
      copy_on_side = duplicate(taken);
      itself = own.local_value().get();
      by_handler = own.rpc_sync<&cell::get>();
      copy = duplicate(whole.to_here());
    }
    CHECK(value_of(itself) == value);
    CHECK(value_of(copy) == value);
    CHECK(value_of(copy_on_side) == value);
    CHECK(value_of(by_handler) == value);
  });
}

TEST_CASE("an object's memory stays until all work queued on it is done, on any stream") {
  device_group group({map_to("worker1", {{"cuda:0", "cuda:1"}}), nullptr});
  in_every_order([&](int value) {
    tensor first;
    tensor second;
    tensor third;
    {
      const fake_cuda::pause nothing_runs;
      auto there = group[0].remote<ferry::make<cell>>("worker1", 1, value);
      auto taken = group[0].remote<ferry::make<cell>>("worker1", 1, 98);
      first = duplicate(there.rpc_sync<&cell::get>());
      taken.rpc_sync<&cell::copy_from>(there);
      second = duplicate(taken.rpc_sync<&cell::get>());
      there.rpc_sync<&cell::replace>(value + 1);
      third = duplicate(there.rpc_sync<&cell::get>());
      there = {};
      taken = {};
      references_test::await([] { return cell::alive() == 0; });
      for (int i = 0; i != 8; ++i) (void)group[0].rpc_sync<made_on>("worker1", 1, 97);  // in the freed memory
    }
    CHECK(value_of(first) == value);
    CHECK(value_of(second) == value);
    CHECK(value_of(third) == value + 1);
  });
}

TEST_CASE(
    "an answer from an object's own memory is read before the memory is overwritten, also if it is sent to the CPU") {
  device_group group({[](native_options& options) {
                        options.set_device_map("worker1", {{"cpu", "cuda:1"}});
                      },
                      nullptr});
  in_every_order([&](int value) {
    const auto there = group[0].remote<ferry::make<shared_cell>>("worker1", 1, value);
    there.created().get();
    ferry::future<tensor> coming;
    {
      const fake_cuda::pause nothing_runs;
      coming = there.rpc_async<&cell::memory>();
      there.rpc_sync<&cell::set>(99);
    }
    const tensor got = coming.get();
    CHECK(got.device() == host);
    CHECK(value_of(got) == value);
    CHECK(there.rpc_sync<&cell::value>() == 99);
  });
}

TEST_CASE(
    "work of the call with the turn of a reentrant object is ordered after work of calls that released the turn") {
  device_group group(all_to_all(2, 0, 1));
  in_every_order([&](int value) {
    const auto there = group[0].remote<ferry::make<shared_cell>>("worker1", 1, 99);
    there.created().get();
    std::vector<tensor> got;
    {
      const fake_cuda::pause nothing_runs;
      got.push_back(duplicate(there.rpc_sync<&shared_cell::set_around_a_call>(value, "worker0")));
      got.push_back(duplicate(there.rpc_sync<&shared_cell::set_around_a_wait>(value + 1, "worker0")));
      got.push_back(duplicate(there.rpc_sync<&cell::get>()));
      there.rpc_sync<&cell::set>(value + 2);
      got.push_back(duplicate(there.rpc_sync<&cell::get>()));
    }
    CHECK(value_of(got[0]) == value);
    CHECK(value_of(got[1]) == value + 1);
    CHECK(value_of(got[2]) == value + 1);
    CHECK(value_of(got[3]) == value + 2);
  });
}

TEST_CASE("an argument may be overwritten once its call has ended, with a result or an error") {
  const ferry_test::captured_log quiet;
  device_group group({map_to("worker1", {{"cuda:0", "cuda:1"}}), nullptr});
  in_every_order([&](int value) {
    for (int how = 0; how != 4; ++how) {
      CAPTURE(how);
      kept().clear();
      {
        const fake_cuda::pause nothing_runs;
        const tensor x = filled(gpu(0), static_cast<unsigned char>(value));
        if (how == 0) CHECK(group[0].rpc_sync<keep>("worker1", x) == 7);
        if (how == 1) CHECK(group[0].rpc_async<keep>("worker1", x).get() == 7);
        if (how == 2) CHECK_THROWS_AS(group[0].rpc_sync<keep_and_fail>("worker1", x), std::runtime_error);
        if (how == 3) CHECK_THROWS_AS(group[0].rpc_async<keep_and_fail>("worker1", x).get(), std::runtime_error);
        cell::set_tensor(x, 99);
      }
      REQUIRE(kept().size() == 1);
      CHECK(value_of(kept()[0]) == value);
      kept().clear();
    }
  });
}

TEST_CASE("the tensors of a value are found behind its references, too") {
  device_group group({nullptr});
  in_every_order([&](int value) {
    ferry::promise<named_tensor> promise;
    {
      const ferry::stream_guard guard(ferry::pool_stream(gpu(2)));
      promise.set_value(named_tensor{"x", group[0].make_rref(1), filled(gpu(2), static_cast<unsigned char>(value))});
    }
    CHECK(value_read(promise.get_future().get().second) == value);
  });
}

TEST_CASE("[row 221] devices by number, by name and by value: a future has values on any of them") {
  device_group group({[](auto& o) {
                        o.set_device_map("worker1", {{0, 0}, {"cuda:1", 1}, {gpu(2), "cuda:2"}});
                        o.set_devices({0, "cuda:1", gpu(2)});
                      },
                      nullptr});
  CHECK(group[0].devices() == std::vector{gpu(0), gpu(1), gpu(2)});
  for (int index = 0; index != 3; ++index) {
    ferry::promise<tensor> promise;
    const ferry::future<tensor> future = promise.get_future();
    {
      const ferry::stream_guard guard(ferry::pool_stream(gpu(index)));
      promise.set_value(filled(gpu(index), 5));
    }
    CHECK(value_read(future.get()) == 5);
    CHECK(value_read(group[0].rpc_async<made_on>("worker1", index, 6).get()) == 6);
  }
}

TEST_CASE("[row 226] a result on a device that its worker has not declared is the future's error, and callbacks run") {
  const ferry_test::captured_log quiet;
  device_group group({map_to("worker1", {{0, 0}}), [](auto& o) { o.set_devices({0, 1}); }});
  for (const int index : {1, 5}) {  // declared without a map, and not even declared
    std::atomic<bool> done{false};
    const auto future = group[0].rpc_async<made_on>("worker1", index, 1);
    future.add_done_callback([&](const ferry::future<tensor>& failed) { done = failed.failed(); });
    const auto notified = future.then([](const ferry::future<tensor>& failed) { return failed.failed(); });
    expect_error(errc::bad_device, "Response device mapping is not available", [&] { future.get(); });
    CHECK(notified.get());
    references_test::await([&] { return done.load(); });
  }
  CHECK(value_read(group[0].rpc_sync<made_on>("worker1", 0, 1)) == 1);
}

TEST_CASE("[row 170] maps for workers that join later apply to them once they have joined") {
  dynamic_group_test::meeting_place at;
  const auto start = [&](const std::string& name, const prepare& how) {
    native_options options;
    how(options);
    return ferry::init_rpc<ferry::native>(dynamic_group_test::config_of(at.method, name), options);
  };
  ferry::worker first = start("first", map_to("late", {{"cuda:0", "cuda:1"}}));
  dynamic_group_test::events seen(first);
  ferry::worker late = start("late", map_to("first", {{"cuda:2", "cuda:3"}}));
  seen.up_to("late joined");
  in_every_order([&](int value) {
    const auto byte = static_cast<unsigned char>(value);
    CHECK(first.rpc_sync<device_of>("late", filled(gpu(0), byte)) == 1);
    CHECK(late.rpc_sync<device_of>("first", filled(gpu(2), byte)) == 3);
    const tensor by_late = first.rpc_sync<made_on>("late", 1, value);
    CHECK(by_late.device() == gpu(0));
    CHECK(value_read(by_late) == value);
    const tensor by_first = late.remote<made_on>("first", 3, value).to_here();
    CHECK(by_first.device() == gpu(2));
    CHECK(value_read(by_first) == value);
  });
  late.leave();
  first.leave();
}

}  // namespace device_references_test
