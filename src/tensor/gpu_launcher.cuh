#pragma once

// How kernels are started on a GPU. Included by what nvcc compiles.

#include <cstdint>

#include "../device/cuda/kernel_modules.hpp"

struct CUstream_st;

namespace ferry::inline v0::detail {
namespace {

constexpr int block_size = 256;
constexpr std::int64_t most_blocks = 1 << 16;

template <class F>
__global__ void run(F function, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    function(i);
  }
}

// Has every kernel that the program can start loaded when devices are warmed up.
template <class F>
struct noted_kernel {
  static const bool done;
};
template <class F>
const bool noted_kernel<F>::done = note_kernel(reinterpret_cast<const void*>(&run<F>));

struct gpu_launcher {
  template <class F>
  static int launch(CUstream_st* stream, std::int64_t count, const F& function) {
    static_cast<void>(noted_kernel<F>::done);
    std::int64_t blocks = (count + block_size - 1) / block_size;
    if (blocks > most_blocks) blocks = most_blocks;
    run<<<static_cast<unsigned>(blocks), block_size, 0, stream>>>(function, count);
    return static_cast<int>(cudaGetLastError());
  }
};

}  // namespace
}  // namespace ferry::inline v0::detail
