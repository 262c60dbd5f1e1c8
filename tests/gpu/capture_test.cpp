// A graph is captured in one stream while other threads call.

#include <atomic>
#include <latch>
#include <thread>

#include <device/cuda/cuda_runtime.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/memory.hpp>

#include "gpu_group.hpp"
#include "graph_capture.hpp"

using namespace gpu_test;
using ferry::dtype;
using ferry::tensor;

namespace gpu_capture_test {

tensor twice(const tensor& t) { return t + t; }

}  // namespace gpu_capture_test

using gpu_capture_test::twice;

TEST_CASE("calls of other threads neither end a capture nor get into its graph") {
  if (!can_capture()) {
    MESSAGE("left out: this runtime does not capture");
    return;
  }
  // Of its own: those of the pool are used by calls.
  CUstream_st* const native = ferry::device_traits<ferry::cuda>::create_stream(gpu);
  const ferry::stream captured = ferry::stream::from_native<ferry::cuda>(native, gpu.index);
  ferry::device_memory memory(captured, 4096);
  captured.synchronize();
  for (const char* transport : {"inproc", "tcp"}) {
    CAPTURE(transport);
    worker_pair pair(transport);
    CHECK(is_filled(pair[0].rpc_sync<&twice>("worker1", filled(1000, 1)), 2));
    std::atomic<bool> over{false};
    std::atomic<int> wrong{0};
    std::latch calling(3);
    std::vector<std::thread> threads;
    for (int i = 0; i != 3; ++i) {
      threads.emplace_back([&, i] {
        for (int round = 0; round == 0 || !over; ++round) {
          // On a stream of its own: the default one waits for captured streams.
          const ferry::stream_guard own(ferry::pool_stream(gpu));
          if (!is_filled(pair[0].rpc_sync<&twice>("worker1", filled(1000 << i, 3)), 6)) wrong.fetch_add(1);
          if (round == 0) calling.count_down();
        }
      });
    }
    calling.wait();
    const ferry::device_guard current(gpu);
    int ended = 0;
    for (int n = 0; n != 20 && ended >= 0; ++n) {
      begin_capture(native);
      for (int i = 0; i != 50; ++i) {
        CHECK(ferry::detail::cuda_runtime_in_use()->memset_async(memory.data(), i, 4096, native) == 0);
        std::this_thread::yield();
      }
      ended = end_capture(native);
      CHECK(ended == 50);
    }
    over = true;
    for (std::thread& each : threads) each.join();
    CHECK(wrong == 0);
  }
  memory = {};
  captured.synchronize();
  ferry::device_traits<ferry::cuda>::destroy_stream(gpu, native);
}
