// Says which GPU there is, whether kernels were compiled for ferry, and whether one runs. Exit status 0 only if all of it is so. Needs
// nothing of ferry, so that it is built in seconds.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include <cuda_runtime_api.h>

#include "tests/support/real_cuda/hold.hpp"

namespace {

bool succeeds(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return true;
  std::printf("%s: %s (CUDA error %d)\n", what, cudaGetErrorString(status), static_cast<int>(status));
  return false;
}

// A kernel that was compiled as ferry's are.
bool kernel_runs() {
  void* flag = nullptr;
  if (!succeeds(cudaHostAlloc(&flag, sizeof(std::uint32_t), cudaHostAllocPortable), "no page-locked memory"))
    return false;
  *static_cast<std::uint32_t*>(flag) = 1;
  const auto started = real_cuda::hold_stream_by_kernel(nullptr, static_cast<std::uint32_t*>(flag), 1);
  return succeeds(static_cast<cudaError_t>(started), "a kernel does not start on this GPU") &&
         succeeds(cudaDeviceSynchronize(), "a kernel does not run on this GPU");
}

}  // namespace

int main() {
  int runtime = 0;
  int driver = 0;
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  static_cast<void>(cudaDriverGetVersion(&driver));
  std::printf("CUDA runtime %d.%d, driver for CUDA %d.%d\n", runtime / 1000, runtime % 1000 / 10, driver / 1000,
              driver % 1000 / 10);
  std::ifstream version("/proc/driver/nvidia/version");
  if (std::string line; std::getline(version, line)) std::printf("%s\n", line.c_str());
  std::printf("CUDA kernels: %s\n", FERRY_WITH_CUDA_KERNELS ? "yes" : "no");
  int count = 0;
  if (!succeeds(cudaGetDeviceCount(&count), "no GPU")) return 1;
  for (int i = 0; i != count; ++i) {
    cudaDeviceProp properties{};
    if (!succeeds(cudaGetDeviceProperties(&properties, i), "a GPU says nothing of itself")) return 1;
    std::printf("GPU %d: %s, compute capability %d.%d, %zu MiB\n", i, properties.name, properties.major,
                properties.minor, properties.totalGlobalMem >> 20);
  }
  return kernel_runs() ? 0 : 1;
}
