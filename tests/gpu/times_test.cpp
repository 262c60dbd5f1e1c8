// Times that the device measures, in profiles.

#include <chrono>
#include <string>

#include <ferry/profiler.hpp>
#include <ferry/tensor/factories.hpp>

#include "gpu_group.hpp"
#include "graph_capture.hpp"
#include "held_stream.hpp"

using namespace gpu_test;
using ferry::dtype;
using ferry::range_kind;
using ferry::tensor;
namespace profiler = ferry::profiler;

namespace gpu_times_test {

constexpr profiler::options timed{.device_times = true};

tensor product(const tensor& a, const tensor& b) { return ferry::matmul(a, b) + a; }

}  // namespace gpu_times_test

using namespace gpu_times_test;

TEST_CASE(
    "operations have the time that the device took for them, here and at a callee, and that is no more than passed") {
  for (const char* transport : {"inproc", "tcp"}) {
    CAPTURE(transport);
    worker_pair pair(transport);
    const tensor a = ferry::ones({256, 256}, dtype::f32, gpu);
    (void)pair[0].rpc_sync<&product>("worker1", a, a);
    const auto began = ferry::clock::now();
    profiler::session recorded(pair[0], timed);
    (void)product(a, a);
    (void)pair[0].rpc_sync<&product>("worker1", a, a);
    const profiler::profile found = recorded.finish();
    const auto passed = ferry::clock::now() - began;
    int here = 0;
    int there = 0;
    for (const profiler::event& each : found.events) {
      CAPTURE(each.name);
      const bool of_product = each.name.ends_with("matmul") || each.name.ends_with("add");
      CHECK(each.device_time.has_value() == (each.kind == range_kind::operation && of_product));
      if (!each.device_time) continue;
      CHECK(each.device == gpu);
      CHECK(*each.device_time > std::chrono::nanoseconds(0));
      CHECK(*each.device_time < passed);
      ++(each.remote ? there : here);
    }
    CHECK(here == 2);
    CHECK(there == 2);
  }
}

TEST_CASE("[held] an operation that is measured does not wait for a device that is held") {
  worker_pair pair("inproc");
  const ferry::stream on = ferry::pool_stream(gpu);
  const ferry::stream_guard current(on);
  const tensor a = filled(1 << 16, 3);
  (void)(a + a);
  {
    profiler::session warm(pair[0], timed);
    (void)(a + a);
    (void)warm.finish();
  }
  held_stream held(on);
  profiler::session recorded(pair[0], timed);
  tensor sum;
  without_waiting("an operation that is measured", [&] { sum = a + a; });
  held.release();
  const profiler::profile found = recorded.finish();
  REQUIRE(found.find("add"));
  CHECK(found.find("add")->device_time.has_value());
  CHECK(is_filled(sum, 6));
}
