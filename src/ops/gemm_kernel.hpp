#pragma once

// The product of matrices on devices without cuBLAS, and of integers; see kernels.hpp.

#include <cstdint>
#include <type_traits>

#include "../tensor/kernels.hpp"
#include "cpu_kernels.hpp"
#include "wrapping.hpp"

namespace ferry::inline v0::detail {

/// One index computes one element, its sum in order of the inner axis.
template <class T>
struct gemm_kernel {
  gemm_call<T> call;
  FERRY_KERNEL void operator()(std::int64_t index) const {
    const std::int64_t row = index / call.columns;
    const std::int64_t column = index - row * call.columns;
    const T* a = call.a + row * (call.a_transposed ? 1 : call.a_leading);
    const T* b = call.b + column * (call.b_transposed ? call.b_leading : 1);
    const std::int64_t a_step = call.a_transposed ? call.a_leading : 1;
    const std::int64_t b_step = call.b_transposed ? 1 : call.b_leading;
    T& out = call.out[row * call.out_leading + column];
    T total = call.accumulate ? out : T{0};
    for (std::int64_t i = 0; i != call.inner; ++i) total = add_product(total, a[i * a_step], b[i * b_step]);
    out = total;
  }

 private:
  // Products of matrices are not promised to be equal on all devices: the only kernel whose sums are fused with its products.
  FERRY_KERNEL static T add_product(T total, T a, T b) {
#ifdef __CUDA_ARCH__
    if constexpr (std::is_floating_point_v<T>) return fma(a, b, total);
#endif
    return plus(total, times(a, b));
  }
};

}  // namespace ferry::inline v0::detail
