// What the tests of this folder need, on the double.

#include <device/cuda/cuda_runtime.hpp>

#include <stdexcept>
#include <thread>

#include "fake_cuda.hpp"
#include "graph_capture.hpp"
#include "held_stream.hpp"

namespace gpu_test {
namespace {

struct until {
  const volatile std::uint32_t* flag;
  std::uint32_t ticket;
};

}  // namespace

int start_hold(CUstream_st* stream, const volatile std::uint32_t* flag, std::uint32_t ticket) {
  const auto spin = [](void* argument) {
    auto* const what = static_cast<until*>(argument);
    while (__atomic_load_n(what->flag, __ATOMIC_ACQUIRE) < what->ticket) std::this_thread::yield();
    delete what;
  };
  return ferry::detail::cuda_runtime_in_use()->launch_host_func(stream, spin, new until{flag, ticket});
}

bool can_capture() { return true; }

void begin_capture(CUstream_st* stream) {
  if (const int status = fake_cuda::begin_capture(stream)) {
    throw std::runtime_error("a capture cannot begin: CUDA error " + std::to_string(status));
  }
}

int end_capture(CUstream_st* stream) {
  const fake_cuda::captured_graph graph = fake_cuda::end_capture(stream);
  return graph.status == 0 ? static_cast<int>(graph.nodes) : -graph.status;
}

}  // namespace gpu_test
