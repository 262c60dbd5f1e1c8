#include "hold.hpp"

namespace real_cuda {
namespace {

constexpr std::uint64_t longest = 120'000'000'000;  // nanoseconds

__device__ std::uint64_t now() {
  std::uint64_t time = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__global__ void spin(const volatile std::uint32_t* flag, std::uint32_t ticket) {
  const std::uint64_t start = now();
  while (*flag < ticket && now() - start < longest) {
  }
}

}  // namespace

int hold_stream_by_kernel(CUstream_st* stream, const volatile std::uint32_t* flag, std::uint32_t ticket) {
  void* arguments[] = {&flag, &ticket};
  return static_cast<int>(
      cudaLaunchKernel(reinterpret_cast<const void*>(&spin), dim3(1), dim3(1), arguments, 0, stream));
}

}  // namespace real_cuda
