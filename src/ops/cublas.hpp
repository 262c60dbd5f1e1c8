#pragma once

// cuBLAS, opened when the first product on a CUDA device is computed: ferry is not linked with it.

#include <ferry/device/device.hpp>

#include "cpu_kernels.hpp"

struct CUstream_st;

namespace ferry::inline v0::detail {

/// The functions of its interface that ferry calls, version 2. Statuses are 0 or an error; matrices are column-major.
struct cublas_functions {
  int (*create)(void** handle);
  int (*set_stream)(void* handle, CUstream_st* stream);
  int (*f32)(void* handle, int transposed_a, int transposed_b, int rows, int columns, int inner, const float* alpha,
             const float* a, int a_leading, const float* b, int b_leading, const float* beta, float* out,
             int out_leading);
  int (*f64)(void* handle, int transposed_a, int transposed_b, int rows, int columns, int inner, const double* alpha,
             const double* a, int a_leading, const double* b, int b_leading, const double* beta, double* out,
             int out_leading);
};

/// The library that FERRY_CUBLAS names, or of the versions that are known, the newest one installed; "none", or none installed: null.
/// One that is named and cannot be used is a warning, and null.
const cublas_functions* linked_cublas() noexcept;
/// Replaces it, for tests: call it before any other use of ferry. Null: products are computed by a kernel of ferry's.
void use_cublas(const cublas_functions* functions) noexcept;

/// Whether cuBLAS has been found, and takes sizes like these.
template <class T>
bool cublas_takes(const gemm_call<T>& call) noexcept;
/// Starts the product, without a bias, on the stream, of the device that is current; returns a cudaError_t. Thread-safe.
template <class T>
int start_cublas_gemm(device where, CUstream_st* stream, const gemm_call<T>& call);

}  // namespace ferry::inline v0::detail
