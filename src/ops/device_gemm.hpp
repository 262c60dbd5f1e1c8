#pragma once

// Products of matrices on CUDA devices: by cuBLAS, or by a kernel.

#include <ferry/tensor/tensor.hpp>

#include "cpu_kernels.hpp"

namespace ferry::inline v0::detail {

/// Starts the call's product, without a bias, on the current stream of the tensors' device, which is recorded as a user of them: i32,
/// i64, f32, f64. Throws errc::device_failure.
template <class T>
void multiply_on_device(const gemm_call<T>& call, const tensor& result, const tensor& a, const tensor& b);

}  // namespace ferry::inline v0::detail
