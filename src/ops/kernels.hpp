#pragma once

// The kernels of arithmetic; see tensor/kernels.hpp.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <ferry/tensor/dtype.hpp>

#include "../tensor/kernels.hpp"
#include "comparisons.hpp"
#include "function_kernels.hpp"
#include "gemm_kernel.hpp"
#include "numbers.hpp"
#include "rows.hpp"
#include "wrapping.hpp"

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

  // The kernels of function_kernels.hpp; f32 and f64 where the function is for them alone.
  int (*function)(CUstream_st* stream, const walk<2>& plan, dtype type, unary_function f, const function_numbers& with);
  int (*function_gradient)(CUstream_st* stream, const walk<3>& plan, dtype type, unary_function f,
                           const function_numbers& with);
  int (*pair)(CUstream_st* stream, const walk<3>& plan, dtype type, binary_function f);
  int (*pair_gradient)(CUstream_st* stream, const walk<4>& plan, dtype type, binary_function f, std::size_t input);
  int (*compare)(CUstream_st* stream, const walk<3>& plan, dtype from, comparison how);
  int (*choose)(CUstream_st* stream, const walk<4>& plan, std::size_t size);

  // Those of rows.hpp.
  int (*softmax)(CUstream_st* stream, const row_plan<2>& plan, dtype type, bool logarithm);
  int (*softmax_gradient)(CUstream_st* stream, const row_plan<3>& plan, dtype type, bool logarithm);
  int (*logsumexp)(CUstream_st* stream, const row_plan<2>& plan, dtype type);
  int (*extreme)(CUstream_st* stream, const row_plan<3>& plan, dtype type, bool largest);
  int (*scatter_add)(CUstream_st* stream, const row_plan<3>& plan, dtype type, std::int64_t places);
  int (*gather)(CUstream_st* stream, const walk<3>& plan, std::size_t size, std::int64_t places, std::int64_t step);

  /// That of gemm_kernel.hpp; `call` is a gemm_call of the type's, without a bias.
  int (*gemm)(CUstream_st* stream, dtype type, const void* call);
};

// ---------------------------------------------------------------- functions of one index

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
    element_at<T>(at[0]) = how == kernel_operation::add ? plus(a, times(factor, b)) : times(a, b);
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
    element_at<T>(at[0]) = how == kernel_operation::add ? plus(value, a) : times(a, value);
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
      total = plus(total, static_cast<total_type>(element_at<T>(at[1] + offset)));
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
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan), combine_kernel<T>{plan, how, number_as<T>(factor)});
        });
      },
      .combine_number = [](CUstream_st* stream, const walk<2>& plan, dtype type, kernel_operation how,
                           kernel_number value) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan),
                                  combine_number_kernel<T>{plan, how, number_as<T>(value)});
        });
      },
      .sum = [](CUstream_st* stream, const walk<2>& plan, const walk<1>& reduced, dtype from) -> int {
        const std::int64_t count = reduced.empty ? 0 : element_count(reduced);
        return visit_arithmetic(from, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan), sum_kernel<T>{plan, reduced, count});
        });
      },
      .function = [](CUstream_st* stream, const walk<2>& plan, dtype type, unary_function f,
                     const function_numbers& with) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan),
                                  function_kernel<T>{plan, f, static_cast<T>(with.first), static_cast<T>(with.second)});
        });
      },
      .function_gradient = [](CUstream_st* stream, const walk<3>& plan, dtype type, unary_function f,
                              const function_numbers& with) -> int {
        return visit_floating(type, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(
              stream, element_count(plan),
              function_gradient_kernel<T>{plan, f, static_cast<T>(with.first), static_cast<T>(with.second)});
        });
      },
      .pair = [](CUstream_st* stream, const walk<3>& plan, dtype type, binary_function f) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan), pair_kernel<T>{plan, f});
        });
      },
      .pair_gradient = [](CUstream_st* stream, const walk<4>& plan, dtype type, binary_function f,
                          std::size_t input) -> int {
        return visit_floating(type, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan), pair_gradient_kernel<T>{plan, f, input});
        });
      },
      .compare = [](CUstream_st* stream, const walk<3>& plan, dtype from, comparison how) -> int {
        return visit_arithmetic(from, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan), compare_kernel<T>{plan, how});
        });
      },
      .choose = [](CUstream_st* stream, const walk<4>& plan, std::size_t size) -> int {
        const std::int64_t count = element_count(plan);
        switch (size) {
          case 1: return Launcher::launch(stream, count, choose_kernel<std::uint8_t>{plan});
          case 2: return Launcher::launch(stream, count, choose_kernel<std::uint16_t>{plan});
          case 4: return Launcher::launch(stream, count, choose_kernel<std::uint32_t>{plan});
          case 8: return Launcher::launch(stream, count, choose_kernel<std::uint64_t>{plan});
          default: return Launcher::launch(stream, count, choose_kernel<sixteen_bytes>{plan});
        }
      },
      .softmax = [](CUstream_st* stream, const row_plan<2>& plan, dtype type, bool logarithm) -> int {
        return visit_floating(type, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan.outer), softmax_kernel<T>{plan, logarithm});
        });
      },
      .softmax_gradient = [](CUstream_st* stream, const row_plan<3>& plan, dtype type, bool logarithm) -> int {
        return visit_floating(type, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan.outer), softmax_gradient_kernel<T>{plan, logarithm});
        });
      },
      .logsumexp = [](CUstream_st* stream, const row_plan<2>& plan, dtype type) -> int {
        return visit_floating(type, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan.outer), logsumexp_kernel<T>{plan});
        });
      },
      .extreme = [](CUstream_st* stream, const row_plan<3>& plan, dtype type, bool largest) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan.outer), extreme_kernel<T>{plan, largest});
        });
      },
      .scatter_add = [](CUstream_st* stream, const row_plan<3>& plan, dtype type, std::int64_t places) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          return Launcher::launch(stream, element_count(plan.outer), scatter_add_kernel<T>{plan, places});
        });
      },
      .gather = [](CUstream_st* stream, const walk<3>& plan, std::size_t size, std::int64_t places,
                   std::int64_t step) -> int {
        const std::int64_t count = element_count(plan);
        switch (size) {
          case 1: return Launcher::launch(stream, count, gather_kernel<std::uint8_t>{plan, places, step});
          case 2: return Launcher::launch(stream, count, gather_kernel<std::uint16_t>{plan, places, step});
          case 4: return Launcher::launch(stream, count, gather_kernel<std::uint32_t>{plan, places, step});
          case 8: return Launcher::launch(stream, count, gather_kernel<std::uint64_t>{plan, places, step});
          default: return Launcher::launch(stream, count, gather_kernel<sixteen_bytes>{plan, places, step});
        }
      },
      .gemm = [](CUstream_st* stream, dtype type, const void* call) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          const auto& product = *static_cast<const gemm_call<T>*>(call);
          return Launcher::launch(stream, product.rows * product.columns, gemm_kernel<T>{product});
        });
      },
  };
}

/// The table of kernels.cu; null in a build without a compiler for CUDA.
const arithmetic_kernels* linked_arithmetic_kernels() noexcept;

/// The table that is used. There is one: has_kernels() is true.
const arithmetic_kernels& kernels_in_use() noexcept;

/// Replaces the table, for tests: call it before any other use of ferry. Cannot be undone.
void use_arithmetic_kernels(const arithmetic_kernels* kernels) noexcept;

}  // namespace ferry::inline v0::detail
