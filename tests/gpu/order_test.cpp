// Order on the device, and what must not wait for it, with streams that a kernel holds.

#include <ferry/device/memory.hpp>

#include "gpu_group.hpp"
#include "held_stream.hpp"

using namespace gpu_test;
using ferry::dtype;
using ferry::stream;
using ferry::tensor;

namespace gpu_order_test {

tensor plus_one(const tensor& t) { return t + ferry::full(t.shape(), 1, dtype::i32, t.device()); }

}  // namespace gpu_order_test

using gpu_order_test::plus_one;

TEST_CASE("[held] work behind a kernel that spins begins when it ends, also on another stream that waits") {
  const stream first = ferry::pool_stream(gpu);
  const stream second = ferry::pool_stream(gpu);
  tensor t = filled(1000, 1);
  first.wait(ferry::current_stream(gpu));
  held_stream held(first);
  tensor seen;
  {
    const ferry::stream_guard on(first);
    t.fill_(2);
  }
  second.wait(first);
  const ferry::event end = [&] {
    const ferry::stream_guard on(second);
    seen = t.clone();
    return second.record();
  }();
  CHECK_FALSE(end.done());
  CHECK_FALSE(first.done());
  held.release();
  end.synchronize();
  const ferry::stream_guard on(second);
  CHECK(is_filled(seen, 2));
}

TEST_CASE("[held] no operation waits for a device that is held") {
  const stream on = ferry::pool_stream(gpu);
  const stream side = ferry::pool_stream(gpu);
  const ferry::stream_guard current(on);
  const tensor from_host = ferry::full({1 << 16}, 5, dtype::i32);
  const auto all = [&](const char* round) {
    const auto step = [&](const char* what, const std::function<void()>& action) {
      without_waiting(std::string(what) + " (" + round + ")", action);
    };
    tensor t;
    step("a tensor is made", [&] { t = filled(1 << 16, 3); });
    step("memory is allocated and given back", [&] { ferry::device_memory(on, 1 << 20).record_use(side); });
    step("an event is recorded, and waited for by a stream", [&] { side.wait(on.record()); });
    step("a copy on the device", [&] { (void)t.clone(); });
    step("a strided copy", [&] { (void)t.view({256, 256}).transpose(0, 1).contiguous(); });
    step("a conversion", [&] { (void)t.to(dtype::f32); });
    step("arithmetic", [&] { t = t + t; });
    step("a copy from the host", [&] { t = from_host.to(gpu); });
    return t;
  };
  (void)all("for the first time, not held");  // page-locked memory and kernels are there from now on
  on.synchronize();
  side.synchronize();
  tensor last;
  {
    const held_stream held(on);
    last = all("held");
    CHECK_FALSE(held.released());
  }
  CHECK(is_filled(last, 5));
}

TEST_CASE("[held] calls return while the device is held, and are right when it goes on") {
  for (const char* transport : {"inproc", "tcp"}) {
    CAPTURE(transport);
    worker_pair pair(transport);
    const stream on = ferry::pool_stream(gpu);
    const ferry::stream_guard current(on);
    CHECK(is_filled(pair[0].rpc_sync<&plus_one>("worker1", filled(1 << 18, 1)), 2));
    ferry::future<tensor> coming;
    tensor answer;
    {
      const held_stream held(on);
      const tensor t = filled(1 << 18, 7);
      without_waiting("rpc_async", [&] { coming = pair[0].rpc_async<&plus_one>("worker1", t); });
      // Within a process a call is over when its work is queued; a socket waits for the bytes, and its caller for the socket.
      if (transport == std::string("inproc")) without_waiting("get()", [&] { answer = coming.get(); });
      CHECK_FALSE(held.released());
    }
    if (transport == std::string("tcp")) answer = coming.get();
    CHECK(is_filled(answer, 8));
  }
}
