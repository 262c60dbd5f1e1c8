// What the tests of this folder need of a GPU.

#include <stdexcept>
#include <string>

#include <cuda_runtime_api.h>

#include "graph_capture.hpp"
#include "held_stream.hpp"
#include "tests/support/real_cuda/hold.hpp"

namespace gpu_test {

int start_hold(CUstream_st* stream, const volatile std::uint32_t* flag, std::uint32_t ticket) {
  return real_cuda::hold_stream_by_kernel(stream, flag, ticket);
}

bool can_capture() { return true; }

void begin_capture(CUstream_st* stream) {
  if (const cudaError_t status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)) {
    throw std::runtime_error(std::string("a capture cannot begin: ") + cudaGetErrorString(status));
  }
}

int end_capture(CUstream_st* stream) {
  cudaGraph_t graph = nullptr;
  if (const cudaError_t status = cudaStreamEndCapture(stream, &graph)) {
    static_cast<void>(cudaGetLastError());
    return -static_cast<int>(status);
  }
  std::size_t nodes = 0;
  cudaGraphGetNodes(graph, nullptr, &nodes);
  cudaGraphDestroy(graph);
  return static_cast<int>(nodes);
}

}  // namespace gpu_test
