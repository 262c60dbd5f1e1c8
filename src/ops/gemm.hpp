#pragma once

// The seam for products of matrices: whatever computes them for the library is called through here.

#include "cpu_kernels.hpp"

namespace ferry::inline v0::detail {

/// As in cpu_kernels.
struct gemm_functions {
  void (*f32)(const gemm_call<float>& call);
  void (*f64)(const gemm_call<double>& call);
};

/// What computes products unless it is replaced: the library that FERRY_BLAS names (cpu/blas_library.hpp), else the kernels in use. If
/// the library cannot be used, functions that throw errc::missing_environment with the reason. The choice is made at the first
/// call. Thread-safe.
const gemm_functions* linked_gemm() noexcept;

/// Replaces it, for tests: call it before any other use of ferry. Null: linked_gemm(), again.
void use_gemm(const gemm_functions* functions) noexcept;

/// Computes a product. Throws what the functions in use throw. Thread-safe.
void gemm(const gemm_call<float>& call);
void gemm(const gemm_call<double>& call);

}  // namespace ferry::inline v0::detail
