#pragma once

// How kernels are started on a GPU. Included by what nvcc compiles.

#include <cstdint>

#include "../device/cuda/kernel_modules.hpp"

struct CUstream_st;

namespace ferry::inline v0::detail {
namespace {

constexpr int block_size = 256;
constexpr unsigned most_blocks = 1 << 16;  // of the 2^31 - 1 that a grid may have

template <class F, class Index>
__global__ void run(F function, Index count) {
  const Index step = static_cast<Index>(gridDim.x) * static_cast<Index>(blockDim.x);
  for (Index i = static_cast<Index>(blockIdx.x) * static_cast<Index>(blockDim.x) + static_cast<Index>(threadIdx.x);
       i < count; i += step) {
    function(i);
  }
}

// Has every kernel that the program can start loaded when devices are warmed up.
template <class F, class Index>
struct noted_kernel {
  static const bool done;
};
template <class F, class Index>
const bool noted_kernel<F, Index>::done = note_kernel(reinterpret_cast<const void*>(&run<F, Index>));

struct gpu_launcher {
  /// Calls function(0), ..., function(count - 1). The result is that of the launch: the runtime's last error, in which the program
  /// may keep one of its own, is not asked.
  template <class F, class Index>
  static int launch(CUstream_st* stream, Index count, F function) {
    static_assert(sizeof(Index) == sizeof(std::uint32_t) || sizeof(Index) == sizeof(std::int64_t));
    static_cast<void>(noted_kernel<F, Index>::done);
    if (count <= 0) return static_cast<int>(cudaSuccess);  // a grid without blocks is an error
    const Index wanted = (count - 1) / block_size + 1;
    const unsigned blocks = wanted < static_cast<Index>(most_blocks) ? static_cast<unsigned>(wanted) : most_blocks;
    void* arguments[] = {&function, &count};
    return static_cast<int>(cudaLaunchKernel(reinterpret_cast<const void*>(&run<F, Index>), dim3(blocks),
                                             dim3(block_size), arguments, 0, stream));
  }
};

}  // namespace
}  // namespace ferry::inline v0::detail
