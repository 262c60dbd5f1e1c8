// What a worker does with its devices before the first call, which streams and which current device a handler has, and what
// becomes of calls while a graph is captured.

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "device_group.hpp"
#include "expect_error.hpp"
#include "processes.hpp"

namespace device_start_test {

using namespace device_calls;
using ferry::device;
using ferry::device_guard;
using ferry::device_kind;
using ferry::errc;
using ferry::stream;
using ferry::tensor;

tensor sum_of(const tensor& t) {
  const tensor wide = t.to(ferry::dtype::i32);
  return (wide + wide).to(ferry::dtype::u8);
}
int current_device_index(const tensor&) { return ferry::current_device(device_kind::cuda).index; }
int current_device_index_now() { return ferry::current_device(device_kind::cuda).index; }
int change_device(const tensor& t) {
  ferry::device_traits<ferry::cuda>::make_current(6);
  return t.device().index;
}
ferry::task<int> current_device_later(tensor t) {
  const auto index = static_cast<double>(co_await ferry::rpc_async<current_device_index_now>("worker0"));
  (void)index;
  co_return t.device().index == ferry::current_device(device_kind::cuda).index ? 1 : 0;
}
bool has_own_stream(int index) { return ferry::current_stream(gpu(index)) != ferry::default_stream(gpu(index)); }
bool keeps_its_stream(int index) {
  const stream first = ferry::current_stream(gpu(index));
  {
    const ferry::stream_guard other(ferry::pool_stream(gpu(index)));
    if (ferry::current_stream(gpu(index)) == first) return false;
  }
  return ferry::current_stream(gpu(index)) == first;
}
int one() { return 1; }
tensor same(tensor t) { return t; }

namespace {

// Arguments: whether worker0 maps to a device of worker1's, which names none.
const ferry_test::role start_a_group("start_a_group", [](const std::vector<std::string>& arguments) {
  ferry_test::temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  std::vector<ferry::worker> workers(2);
  std::vector<std::string> problems(2);
  std::vector<std::function<void()>> actions;
  for (int rank = 0; rank != 2; ++rank) {
    actions.emplace_back([&, rank] {
      ferry::worker_config config;
      config.name = ferry_test::worker_name(rank);
      config.rank = rank;
      config.world_size = 2;
      config.init_method = meeting;
      if (rank == 0 && arguments.at(0) != "none") config.set_device_map("worker1", {{"cpu", arguments.at(0)}});
      try {
        workers[static_cast<std::size_t>(rank)] = ferry::init_rpc(config);
      } catch (const ferry::error& problem) {
        problems[static_cast<std::size_t>(rank)] = problem.message();
      }
    });
  }
  ferry_test::run_together(actions);
  ferry_test::tell_parent(std::to_string(fake_cuda::calls(fake_cuda::call::get_device_count)) + " counted, " +
                          std::to_string(fake_cuda::contexts().size()) + " contexts");
  ferry_test::tell_parent(problems[0]);
  ferry_test::tell_parent(problems[1]);
  if (problems[0].empty()) {
    actions.clear();
    for (auto& each : workers) actions.emplace_back([&each] { each.shutdown(); });
    ferry_test::run_together(actions);
  }
  return 0;
});

const ferry_test::role call_after_the_start("call_after_the_start", [](const std::vector<std::string>&) {
  const ferry_test::captured_log log(ferry::log_level::info);
  device_group group({map_to("worker1", {{"cuda:2", "cuda:3"}, {"cpu", "cuda:4"}}), nullptr});
  ferry_test::tell_parent(log.has("worker0", "warmed up cuda:2 in ") ? "worker0 told" : "worker0 silent");
  ferry_test::tell_parent(log.has("worker1", "warmed up cuda:3, cuda:4 in ") ? "worker1 told" : "worker1 silent");
  const tensor on_gpu = filled(gpu(2), 1);
  const tensor on_cpu = filled(host, 1);
  const auto before = fake_cuda::creations();
  int right = 0;
  for (int i = 0; i != 100; ++i) {
    const tensor result = group[0].rpc_sync<sum_of>("worker1", i % 2 == 0 ? on_gpu : on_cpu);
    if (value_read(result) == 2) ++right;
  }
  ferry_test::tell_parent(std::to_string(right) + " right, " + std::to_string(fake_cuda::creations() - before) +
                          " made");
  return 0;
});

}  // namespace

TEST_CASE("after the start, calls make nothing that a device has to stand still for") {
  ferry_test::child_process child({.role = "call_after_the_start"});
  CHECK(child.read_line() == "worker0 told");
  CHECK(child.read_line() == "worker1 told");
  CHECK(child.read_line() == "100 right, 0 made");
  CHECK(child.wait() == 0);
}

TEST_CASE("devices are counted when an option names one, and no sooner") {
  const auto start = [](const std::string& target) {
    ferry_test::child_process child({.role = "start_a_group", .arguments = {target}});
    std::vector<std::string> lines;
    for (int i = 0; i != 3; ++i) lines.push_back(child.read_line());
    CHECK(child.wait() == 0);
    return lines;
  };
  CHECK(start("none") == std::vector<std::string>{"0 counted, 0 contexts", "", ""});
  CHECK(start("cuda:1") == std::vector<std::string>{"1 counted, 1 contexts", "", ""});
  const std::string broken =
      "worker worker0 has target devices with invalid indices in its device map for worker1; device map = {cpu: "
      "cuda:9}, device "
      "count = 8 cuda";
  CHECK(start("cuda:9") == std::vector<std::string>{"1 counted, 0 contexts", broken, broken});
}

TEST_CASE("a handler's current device is that of its first tensor, on every thread of the call, and is restored") {
  device_group group(
      {map_to("worker1", {{"cuda:0", "cuda:4"}, {"cuda:1", "cuda:5"}}), map_to("worker0", {{4, 0}, {5, 1}})});
  for (int index = 0; index != 2; ++index) {
    const tensor t = filled(gpu(index), 1);
    CHECK(group[0].rpc_sync<current_device_index>("worker1", t) == index + 4);
    CHECK(group[0].rpc_sync<current_device_later>("worker1", t) == 1);
  }
  // A handler that leaves another one current has no effect on later calls.
  for (int i = 0; i != 20; ++i) {
    CHECK(group[0].rpc_sync<change_device>("worker1", filled(gpu(0), 1)) == 4);
    CHECK(group[0].rpc_sync<current_device_index_now>("worker1") != 6);
    CHECK(group[0].rpc_sync<current_device_index>("worker1", filled(gpu(1), 1)) == 5);
  }
}

TEST_CASE("a call takes a stream on a device when it asks for it, and keeps it") {
  device_group group({map_to("worker1", {{"cuda:0", "cuda:0"}, {"cuda:1", "cuda:1"}, {"cuda:2", "cuda:2"}}), nullptr});
  const auto next = [](int index) { return ferry::pool_stream(gpu(index)); };
  fake_cuda::drain();
  // All are idle, so they are handed out in turn: one that a call took in between is missing.
  const auto taken_by = [&](const auto& call) {
    std::vector<stream> round;
    for (std::size_t i = 0; i != ferry::stream_pool_size(); ++i) round.push_back(next(1));
    call();
    fake_cuda::drain();
    return next(1) == round[0] ? 0 : next(1) == round[2] ? 1 : 2;
  };
  CHECK(taken_by([&] { CHECK(group[0].rpc_sync<one>("worker1") == 1); }) == 0);
  CHECK(taken_by([&] { CHECK(value_read(group[0].rpc_sync<same>("worker1", filled(gpu(0), 1))) == 1); }) == 0);
  CHECK(taken_by([&] { CHECK(group[0].rpc_sync<has_own_stream>("worker1", 1)); }) == 1);
  CHECK(group[0].rpc_sync<keeps_its_stream>("worker1", 1));
  CHECK(group[0].rpc_sync<keeps_its_stream>("worker1", 2));
  CHECK(ferry::current_stream(gpu(1)) == ferry::default_stream(gpu(1)));
}

TEST_CASE("calls go on while another thread captures a graph, and are refused in the order of the captured stream") {
  device_group group({map_to("worker1", {{"cuda:0", "cuda:1"}}), nullptr});
  const stream own = ferry::pool_stream(gpu(0));
  const tensor t = filled(gpu(0), 1);
  const ferry::future<tensor> earlier = group[0].rpc_async<same>("worker1", t);
  earlier.wait();
  std::atomic<bool> begun = false;
  std::atomic<bool> called = false;
  fake_cuda::captured_graph graph;
  std::thread capturing([&] {
    const ferry::stream_guard guard(own);
    CHECK(fake_cuda::begin_capture(own.native<ferry::cuda>()) == 0);
    expect_error(errc::device_failure, "cannot send a tensor in the order of a stream of cuda:0 that is being captured",
                 [&] { (void)group[0].rpc_sync<same>("worker1", t); });
    expect_error(errc::device_failure, "that is being captured", [&] { (void)earlier.get(); });
    expect_error(errc::device_failure, "cannot allocate memory in the order of a stream",
                 [&] { (void)filled(gpu(0), 1); });
    begun = true;
    while (!called) std::this_thread::yield();
    graph = fake_cuda::end_capture(own.native<ferry::cuda>());
    CHECK(value_read(earlier.get()) == 1);
  });
  while (!begun) std::this_thread::yield();
  for (int i = 0; i != 20; ++i) CHECK(value_of(group[0].rpc_sync<sum_of>("worker1", t)) == 2);
  called = true;
  capturing.join();
  CHECK(graph.status == 0);
  CHECK(graph.nodes == 0);
}

}  // namespace device_start_test
