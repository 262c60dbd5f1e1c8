#pragma once

// The kernels of arithmetic; see tensor/kernels.hpp.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <ferry/tensor/dtype.hpp>

#include "../tensor/kernels.hpp"

namespace ferry::inline v0::detail {

/// A number both as an integer and as a real; the dtype selects one.
struct kernel_number {
  std::int64_t integer;
  double real;
};

enum class kernel_operation : std::uint8_t { add, multiply };

/// Each starts a kernel on the stream, of the current device, and returns a cudaError_t. i32, i64, f32, f64.
struct arithmetic_kernels {
  /// 0 = 1 + factor * 2, or 0 = 1 * 2.
  int (*combine)(CUstream_st* stream, const walk<3>& plan, dtype type, kernel_operation how, kernel_number factor);
  /// 0 = 1 + value, or 0 = 1 * value.
  int (*combine_number)(CUstream_st* stream, const walk<2>& plan, dtype type, kernel_operation how,
                        kernel_number value);
  /// An element of 0 = the sum over `reduced`, whose first element is that of 1. Integers are added as i64, which 0 holds; others
  /// as f64, and 0 is of their type.
  int (*sum)(CUstream_st* stream, const walk<2>& plan, const walk<1>& reduced, dtype from);
};

// ---------------------------------------------------------------- functions of one index

/// a + b * c and a * b with the CPU's results: integers wrap.
template <class T>
FERRY_KERNEL T multiply_add(T a, T b, T c) {
  if constexpr (std::is_integral_v<T>) {
    using bits = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<bits>(a) + static_cast<bits>(b) * static_cast<bits>(c));
  } else {
    return a + b * c;
  }
}
template <class T>
FERRY_KERNEL T multiply(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return multiply_add<T>(T{0}, a, b);
  } else {
    return a * b;
  }
}

template <class T>
FERRY_KERNEL T number_as(const kernel_number& value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value.integer);
  } else {
    return static_cast<T>(value.real);
  }
}

template <class T>
struct combine_kernel {
  walk<3> plan;
  kernel_operation how;
  T factor;
  FERRY_KERNEL void operator()(std::int64_t index) const {
    const auto at = locate(plan, index);
    const T a = element_at<T>(at[1]);
    const T b = element_at<T>(at[2]);
    element_at<T>(at[0]) = how == kernel_operation::add ? multiply_add<T>(a, factor, b) : multiply<T>(a, b);
  }
};

template <class T>
struct combine_number_kernel {
  walk<2> plan;
  kernel_operation how;
  T value;
  FERRY_KERNEL void operator()(std::int64_t index) const {
    const auto at = locate(plan, index);
    const T a = element_at<T>(at[1]);
    element_at<T>(at[0]) = how == kernel_operation::add ? multiply_add<T>(value, a, T{1}) : multiply<T>(a, value);
  }
};

/// One index adds the elements of one sum, in order.
template <class T>
struct sum_kernel {
  using total_type = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  using result_type = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
  walk<2> plan;
  walk<1> reduced;
  std::int64_t count;  // of elements of one sum
  FERRY_KERNEL void operator()(std::int64_t index) const {
    const auto at = locate(plan, index);
    total_type total = 0;
    for (std::int64_t i = 0; i != count; ++i) {
      const std::int64_t offset = locate(reduced, i)[0] - reduced.start[0];
      total = multiply_add<total_type>(total, static_cast<total_type>(element_at<T>(at[1] + offset)), 1);
    }
    element_at<result_type>(at[0]) = static_cast<result_type>(total);
  }
};

// ---------------------------------------------------------------- the table

template <class Launcher>
constexpr arithmetic_kernels make_arithmetic_kernels() {
  return {
      .combine = [](CUstream_st* stream, const walk<3>& plan, dtype type, kernel_operation how,
                    kernel_number factor) -> int {
        const std::int64_t count = element_count(plan);
        switch (type) {
          case dtype::i32:
            return Launcher::launch(stream, count,
                                    combine_kernel<std::int32_t>{plan, how, number_as<std::int32_t>(factor)});
          case dtype::i64:
            return Launcher::launch(stream, count,
                                    combine_kernel<std::int64_t>{plan, how, number_as<std::int64_t>(factor)});
          case dtype::f32:
            return Launcher::launch(stream, count, combine_kernel<float>{plan, how, number_as<float>(factor)});
          default: return Launcher::launch(stream, count, combine_kernel<double>{plan, how, number_as<double>(factor)});
        }
      },
      .combine_number = [](CUstream_st* stream, const walk<2>& plan, dtype type, kernel_operation how,
                           kernel_number value) -> int {
        const std::int64_t count = element_count(plan);
        switch (type) {
          case dtype::i32:
            return Launcher::launch(stream, count,
                                    combine_number_kernel<std::int32_t>{plan, how, number_as<std::int32_t>(value)});
          case dtype::i64:
            return Launcher::launch(stream, count,
                                    combine_number_kernel<std::int64_t>{plan, how, number_as<std::int64_t>(value)});
          case dtype::f32:
            return Launcher::launch(stream, count, combine_number_kernel<float>{plan, how, number_as<float>(value)});
          default:
            return Launcher::launch(stream, count, combine_number_kernel<double>{plan, how, number_as<double>(value)});
        }
      },
      .sum = [](CUstream_st* stream, const walk<2>& plan, const walk<1>& reduced, dtype from) -> int {
        const std::int64_t sums = element_count(plan);
        const std::int64_t count = reduced.empty ? 0 : element_count(reduced);
        switch (from) {
          case dtype::i32: return Launcher::launch(stream, sums, sum_kernel<std::int32_t>{plan, reduced, count});
          case dtype::i64: return Launcher::launch(stream, sums, sum_kernel<std::int64_t>{plan, reduced, count});
          case dtype::f32: return Launcher::launch(stream, sums, sum_kernel<float>{plan, reduced, count});
          default: return Launcher::launch(stream, sums, sum_kernel<double>{plan, reduced, count});
        }
      },
  };
}

/// The table of kernels.cu; null in a build without a compiler for CUDA.
const arithmetic_kernels* linked_arithmetic_kernels() noexcept;

/// Replaces the table, for tests: call it before any other use of ferry. Cannot be undone.
void use_arithmetic_kernels(const arithmetic_kernels* kernels) noexcept;

}  // namespace ferry::inline v0::detail
