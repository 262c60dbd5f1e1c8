// How long the work of operations takes on devices, here and at callees: on the fake CUDA runtime.

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>
#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/profiler.hpp>
#include <ferry/tensor/factories.hpp>

#include "await_calls.hpp"
#include "device/cuda/cuda_runtime.hpp"
#include "fake_cuda.hpp"
#include "profiler/device_times.hpp"
#include "profiler/recording.hpp"
#include "rpc/worker/worker_core.hpp"
#include "tests/rpc/devices/device_group.hpp"

namespace device_times_test {

namespace profiler = ferry::profiler;
using device_calls::device_group;
using device_calls::gpu;
using device_calls::map_to;
using fake_cuda::call;
using ferry::dtype;
using ferry::range_kind;
using ferry::tensor;
using profiler::event;
using profiler::profile;
using namespace std::chrono_literals;

constexpr profiler::options timed{.device_times = true};

tensor product(const tensor& a, const tensor& b) { return ferry::matmul(a, b) + a; }
// Neither arguments nor result wait for a device.
int doubles(int index) {
  const tensor a = ferry::ones({4, 4}, dtype::f32, gpu(index));
  const tensor b = a + a;
  return index;
}
int doubles_behind(const std::string& next, int index) { return ferry::rpc_sync<doubles>(next, index) + 1; }
int doubles_and_breaks(int index) {
  doubles(index);
  fake_cuda::break_device(index, ferry::detail::cuda_error::launch_failure);
  return index;
}
profiler::server_scope make_timed_scope() { return profiler::server_scope(timed); }

std::vector<const event*> operations(const profile& from, std::string_view name) {
  std::vector<const event*> found;
  for (const event& each : from.events) {
    if (each.kind == range_kind::operation && each.name.ends_with(name)) found.push_back(&each);
  }
  REQUIRE_FALSE(found.empty());
  return found;
}
void check_timed(const event& each, ferry::device on) {
  CAPTURE(each.name);
  CHECK(each.device == on);
  REQUIRE(each.device_time);
  CHECK(*each.device_time > 0ns);
}
void check_untimed(const event& each) {
  CAPTURE(each.name);
  CHECK_FALSE(each.device);
  CHECK_FALSE(each.device_time);
}
// Nothing but operations has times of devices.
void check_others(const profile& of) {
  for (const event& each : of.events) {
    if (each.kind != range_kind::operation) check_untimed(each);
  }
}

struct mended {
  ~mended() {
    fake_cuda::fail_nothing();
    fake_cuda::mend();
  }
};

TEST_CASE(
    "[row 188] times of remote operations are above zero and on the right device; asynchronous events have none") {
  device_group group({map_to("worker1", {{gpu(0), gpu(1)}}), {}});
  const tensor a = ferry::ones({8, 8}, dtype::f32, gpu(0));
  profiler::session recorded(group[0], timed);
  (void)product(a, a);
  (void)group[0].rpc_sync<product>("worker1", a, a);
  (void)group[0].rpc_async<product>("worker1", a, a).get();
  const ferry::rref<tensor> made = group[0].remote<product>("worker1", a, a);
  (void)made.to_here();
  ferry_test::await_calls(group[0]);
  const profile found = recorded.finish();
  std::size_t remote = 0;
  for (const std::string_view name : {"matmul", "add"}) {
    for (const event* each : operations(found, name)) {
      check_timed(*each, each->remote ? gpu(1) : gpu(0));
      CHECK(each->node == (each->remote ? 1 : 0));
      remote += each->remote ? 1 : 0;
    }
  }
  CHECK(remote == 6);
  for (const std::string_view mode : {"rpc_sync#", "rpc_async#", "rpc_remote#", "to_here#"}) {
    const auto call = std::find_if(found.events.begin(), found.events.end(), [&](const event& each) {
      return each.kind == range_kind::call && each.name.starts_with(mode);
    });
    CAPTURE(mode);
    REQUIRE(call != found.events.end());
    check_untimed(*call);
  }
  check_others(found);
  const std::string text = profiler::table(found);
  CHECK(text.find("device us") != std::string::npos);
  CHECK(text.find("cuda:1") != std::string::npos);
}

// Of a tensor that comes on a stream of its own.
tensor with_nine(const tensor& t) {
  if (ferry::current_stream(t.device()) == ferry::default_stream(t.device())) throw std::logic_error("no own stream");
  return device_calls::value_read(t) == 3 ? device_calls::filled(t.device(), 9) : t;
}

TEST_CASE("a profiled call keeps its streams") {
  device_group group({map_to("worker1", {{gpu(0), gpu(1)}}), {}});
  for (const bool times : {false, true}) {
    for (const bool blocking : {true, false}) {
      CAPTURE(times);
      CAPTURE(blocking);
      const ferry::stream own = ferry::pool_stream(gpu(0));
      const ferry::stream_guard guard(own);
      profiler::session recorded(group[0], {.device_times = times});
      // Read and written behind what the stream has to do, which takes a while.
      const tensor given = device_calls::filled(gpu(0), 3);
      const tensor result = device_calls::call<with_nine>(group[0], blocking, "worker1", given);
      CHECK(ferry::current_stream(gpu(0)) == own);
      CHECK(result.device() == gpu(0));
      CHECK(device_calls::value_read(result) == 9);
      CHECK(recorded.finish().count(blocking ? "rpc_sync#device_times_test::with_nine(worker0 -> worker1)"
                                             : "rpc_async#device_times_test::with_nine(worker0 -> worker1)") == 1);
    }
  }
}

TEST_CASE("a reply does not wait for the device: the session asks for the times when it ends") {
  device_group group({{}, {}});
  CHECK(group[0].rpc_sync<doubles>("worker1", 1) == 1);
  std::optional<fake_cuda::pause> still(std::in_place);
  profiler::session recorded(group[0], timed);
  CHECK(group[0].rpc_sync<doubles>("worker1", 1) == 1);
  auto finished = std::async(std::launch::async, [&] { return recorded.finish(); });
  const auto asked = fake_cuda::calls(call::event_query);
  while (fake_cuda::calls(call::event_query) < asked + 8) std::this_thread::yield();  // more than one round
  still.reset();
  const profile found = finished.get();
  check_timed(*operations(found, "#remote_op: add").front(), gpu(1));
  check_others(found);
}

TEST_CASE("times of operations at workers behind the callee come, too") {
  device_group group({{}, {}, {}});
  std::optional<fake_cuda::pause> still(std::in_place);
  profiler::session recorded(group[0], timed);
  CHECK(group[0].rpc_sync<doubles_behind>("worker1", "worker2", 2) == 3);
  CHECK(group[0].rpc_sync<doubles_behind>("worker1", "worker0", 3) == 4);
  still.reset();
  const profile found = recorded.finish();
  const auto adds = operations(found, "#remote_op: add");
  REQUIRE(adds.size() == 2);
  for (const event* each : adds) check_timed(*each, gpu(each->node == 2 ? 2 : 3));
}

TEST_CASE("the end of a session waits for devices no longer than it is to") {
  device_group group({{}, {}});
  (void)doubles(0);
  fake_cuda::drain();
  const fake_cuda::pause still;
  for (const std::chrono::milliseconds wait : {0ms, 20ms}) {
    profiler::session recorded(group[0], {.device_times = true, .device_wait = wait});
    CHECK(group[0].rpc_sync<doubles>("worker1", 1) == 1);
    (void)doubles(0);
    const auto before = ferry::clock::now();
    const profile found = recorded.finish();
    CHECK(ferry::clock::now() - before >= wait);
    for (const event* each : operations(found, "add")) {
      CHECK(each->device == gpu(each->remote ? 1 : 0));
      CHECK_FALSE(each->device_time);
    }
  }
}

TEST_CASE("a session that does not ask for times makes no event that keeps its time, here or at a callee") {
  device_group group({map_to("worker1", {{gpu(2), gpu(3)}}), {}});
  const auto made = fake_cuda::calls(call::event_create_timed);
  const auto measured = fake_cuda::calls(call::event_elapsed_time);
  const tensor a = ferry::ones({8, 8}, dtype::f32, gpu(2));
  {
    profiler::session recorded(group[0]);
    (void)group[0].rpc_sync<product>("worker1", a, a);
    (void)(a + a);
    const profile found = recorded.finish();
    CHECK(operations(found, "add").size() == 2);
    for (const event& each : found.events) check_untimed(each);
    CHECK(profiler::table(found).find("device us") == std::string::npos);
  }
  (void)(a + a);
  CHECK(fake_cuda::calls(call::event_create_timed) == made);
  CHECK(fake_cuda::calls(call::event_elapsed_time) == measured);
  profiler::session recorded(group[0], timed);
  (void)(a + a);
  (void)recorded.finish();
  CHECK(fake_cuda::calls(call::event_elapsed_time) == measured + 1);
}

TEST_CASE("operations of several streams have times of their own") {
  device_group group(std::vector<device_calls::prepare>(1));
  const ferry::stream first = ferry::pool_stream(gpu(4));
  const ferry::stream second = ferry::pool_stream(gpu(4));
  REQUIRE(first != second);
  const tensor a = ferry::ones({8, 8}, dtype::f32, gpu(4));
  profiler::session recorded(group[0], timed);
  for (const ferry::stream& each : {first, second, first}) {
    each.wait(ferry::current_stream(gpu(4)));
    const ferry::stream_guard current(each);
    (void)product(a, a);
  }
  const tensor there = a.to(gpu(5));
  (void)(there + there);
  const profile found = recorded.finish();
  CHECK(operations(found, "matmul").size() == 3);
  for (const event* each : operations(found, "matmul")) check_timed(*each, gpu(4));
  std::size_t elsewhere = 0;
  for (const event* each : operations(found, "add")) {
    elsewhere += each->device == gpu(5) ? 1 : 0;
    REQUIRE(each->device_time);
  }
  CHECK(elsewhere == 1);
}

TEST_CASE("an operation that is made of others has the time from the first to the last; ranges around it have none") {
  device_group group(std::vector<device_calls::prepare>(1));
  const tensor a = ferry::ones({8, 8}, dtype::f32, gpu(4));
  profiler::session recorded(group[0], timed);
  {
    const profiler::range around("around");
    static constexpr ferry::range_description both{"both", range_kind::operation};
    static constexpr ferry::range_description pass{"pass", range_kind::autograd};
    const ferry::detail::traced_range outer(both);
    const ferry::detail::traced_range between(pass);
    (void)ferry::matmul(a, a);
    (void)(a + a);
  }
  const profile found = recorded.finish();
  const event& both = *operations(found, "both").front();
  check_timed(both, gpu(4));
  CHECK(*both.device_time >
        *operations(found, "matmul").front()->device_time + *operations(found, "add").front()->device_time);
  check_others(found);
}

TEST_CASE("what a captured stream is given has no time, and the capture goes on") {
  device_group group({{}, {}});
  CUstream_st* const handle = ferry::device_traits<ferry::cuda>::create_stream(gpu(6));
  const ferry::stream captured = ferry::stream::from_native<ferry::cuda>(handle, 6);
  const tensor a = ferry::ones({8, 8}, dtype::f32, gpu(6));
  const tensor b = ferry::ones({8, 8}, dtype::f32, gpu(6));
  captured.wait(ferry::current_stream(gpu(6)));
  captured.synchronize();
  std::vector<std::size_t> nodes;
  for (const bool measure : {false, true}) {
    profiler::session recorded(group[0], {.device_times = measure});
    REQUIRE(fake_cuda::begin_capture(handle) == 0);
    {
      const ferry::stream_guard current(captured);
      (void)ferry::add_(a, b);
    }
    CHECK(group[0].rpc_sync<doubles>("worker1", 7) == 7);
    const profile found = recorded.finish();
    const fake_cuda::captured_graph graph = fake_cuda::end_capture(handle);
    CHECK(graph.status == 0);
    nodes.push_back(graph.nodes);
    check_untimed(*operations(found, "add_").front());
    if (measure) check_timed(*operations(found, "#remote_op: add").front(), gpu(7));
  }
  CHECK(nodes.front() == nodes.back());
  CHECK(nodes.front() == 1);
}

TEST_CASE("a device that fails: the profile comes, without times") {
  const mended restore;
  device_group group({{}, {}});
  const tensor a = ferry::ones({8, 8}, dtype::f32, gpu(4));
  std::optional<fake_cuda::pause> still(std::in_place);
  profiler::session recorded(group[0], timed);
  (void)(a + a);
  CHECK(group[0].rpc_sync<doubles_and_breaks>("worker1", 5) == 5);
  CHECK_THROWS_AS((void)doubles(5), ferry::error);
  still.reset();
  const profile found = recorded.finish();
  for (const event* each : operations(found, "#remote_op: add")) {
    CHECK(each->device == gpu(5));
    CHECK_FALSE(each->device_time);
  }
  check_timed(*operations(found, "add").front(), gpu(4));
  check_others(found);
}

TEST_CASE("a server scope waits for the times of its requests, and does not see the questions of sessions") {
  device_group group({{}, {}});
  auto scope = group[0].remote<make_timed_scope>("worker1");
  scope.rpc_sync<&profiler::server_scope::enter>();
  std::optional<fake_cuda::pause> still(std::in_place);
  CHECK(group[0].rpc_sync<doubles>("worker1", 1) == 1);
  profiler::session recorded(group[0], timed);
  CHECK(group[0].rpc_sync<doubles>("worker1", 1) == 1);
  still.reset();
  const profile own = recorded.finish();
  const std::vector<profile> requests = scope.rpc_sync<&profiler::server_scope::exit>();
  check_timed(*operations(own, "#remote_op: add").front(), gpu(1));
  const profile all = profiler::merged(requests);
  const auto adds = operations(all, "add");
  CHECK(adds.size() == 2);
  for (const event* each : adds) check_timed(*each, gpu(1));
  for (const event& each : all.events) CHECK(each.name.find("ferry/device_times") == std::string::npos);
}

TEST_CASE("the questions of an inner session are no calls of the outer one") {
  device_group group({{}, {}});
  profiler::session outer(group[0]);
  {
    std::optional<fake_cuda::pause> still(std::in_place);
    profiler::session inner(group[0], timed);
    CHECK(group[0].rpc_sync<doubles>("worker1", 1) == 1);
    still.reset();
    check_timed(*operations(inner.finish(), "#remote_op: add").front(), gpu(1));
  }
  const profile found = outer.finish();
  check_timed(*operations(found, "#remote_op: add").front(), gpu(1));
  for (const event& each : found.events) CHECK(each.name.find("ferry/device_times") == std::string::npos);
}

TEST_CASE("what peers tell of times is believed within reason, and questions about others have an answer") {
  const std::vector<std::uint64_t> tokens{0, ~std::uint64_t{0}, 17};
  CHECK(ferry::detail::tell_device_times(tokens) == std::vector<std::int64_t>(3, ferry::detail::device_time_unknown));
  const ferry::stream on = ferry::pool_stream(gpu(4));
  std::uint64_t token = 0;
  {
    const fake_cuda::pause still;
    auto work = ferry::detail::device_interval::begin(on);
    REQUIRE(work);
    work->end();
    token = ferry::detail::keep_for_asking(std::move(work));
    CHECK(ferry::detail::tell_device_times({token}).front() == ferry::detail::device_time_pending);
  }
  on.synchronize();
  CHECK(ferry::detail::tell_device_times({token, token + 1}).front() >= 0);
  CHECK(ferry::detail::tell_device_times({token, token + 1}).back() == ferry::detail::device_time_unknown);
}

TEST_CASE("a worker that is gone, and one that does not exist, tell no times") {
  profile of;
  of.events.resize(2);
  of.events[0].number = 1;
  of.events[1].number = 2;
  const auto before = ferry::clock::now();
  ferry::detail::await_device_times(of, {{.event = 1, .node = 1, .token = 5}}, {}, 1h);
  {
    device_group group({{}, {}});
    profiler::session recorded(group[0], timed);
    const auto core = ferry::detail::current_worker();
    ferry::detail::await_device_times(
        of,
        {{.event = 1, .node = 1 - core->agent().self().id().value, .token = 5}, {.event = 2, .node = 700, .token = 5}},
        core, 1h);
  }
  CHECK(ferry::clock::now() - before < 1h);
  CHECK_FALSE(of.events[0].device_time);
  CHECK_FALSE(of.events[1].device_time);
}

}  // namespace device_times_test
