#pragma once

// What the layer of this folder stands on: a real GPU (gpu.cpp), or, where there is none, the double of ../fake_cuda, to see that
// the layer itself works (rehearsal.cpp).

#include <cstdint>

#include <device/cuda/cuda_runtime.hpp>
#include <ops/kernels.hpp>
#include <tensor/kernels.hpp>

namespace real_cuda {

/// Null: a build without it.
const ferry::detail::cuda_runtime* lower_runtime();
const ferry::detail::tensor_kernels* lower_tensor_kernels();
const ferry::detail::arithmetic_kernels* lower_arithmetic_kernels();

/// Queues on the stream, of the current device, what ends when `*flag`, in page-locked memory, is `ticket` or more. Returns a
/// cudaError_t.
int hold_stream(CUstream_st* stream, const volatile std::uint32_t* flag, std::uint32_t ticket);

}  // namespace real_cuda
