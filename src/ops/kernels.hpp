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
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
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
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan, index);
    const T a = element_at<T>(at[1]);
    element_at<T>(at[0]) = how == kernel_operation::add ? plus(value, a) : times(a, value);
  }
};

/// The elements of T that a GPU loads and stores with one instruction.
template <class T>
struct alignas(16) element_pack {
  static constexpr std::size_t count = 16 / sizeof(T);
  T at[count];
};

/// combine_kernel and combine_number_kernel for packs of elements.
template <class T>
struct combine_packs_kernel {
  walk<3> plan;
  kernel_operation how;
  T factor;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    using pack = element_pack<T>;
    const auto at = locate(plan, index);
    const pack a = element_at<pack>(at[1]);
    const pack b = element_at<pack>(at[2]);
    pack result;
    for (std::size_t i = 0; i != pack::count; ++i) {
      result.at[i] = how == kernel_operation::add ? plus(a.at[i], times(factor, b.at[i])) : times(a.at[i], b.at[i]);
    }
    element_at<pack>(at[0]) = result;
  }
};
template <class T>
struct combine_number_packs_kernel {
  walk<2> plan;
  kernel_operation how;
  T value;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    using pack = element_pack<T>;
    const auto at = locate(plan, index);
    pack result = element_at<pack>(at[1]);
    for (std::size_t i = 0; i != pack::count; ++i) {
      result.at[i] = how == kernel_operation::add ? plus(value, result.at[i]) : times(result.at[i], value);
    }
    element_at<pack>(at[0]) = result;
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
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan, index);
    const total_type total =
        count <= most_elements_at_once ? total_of(at[1], static_cast<std::uint32_t>(count)) : total_of(at[1], count);
    element_at<result_type>(at[0]) = static_cast<result_type>(total);
  }

 private:
  template <class Index>
  FERRY_KERNEL total_type total_of(std::byte* first, Index elements) const {
    total_type total = 0;
    for (Index i = 0; i != elements; ++i) {
      const std::int64_t offset = locate(reduced, i)[0] - reduced.start[0];
      total = plus(total, static_cast<total_type>(element_at<T>(first + offset)));
    }
    return total;
  }
};

// ---------------------------------------------------------------- the table

template <class Launcher>
constexpr arithmetic_kernels make_arithmetic_kernels() {
  return {
      .combine = [](CUstream_st* stream, const walk<3>& plan, dtype type, kernel_operation how,
                    kernel_number factor) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          const T by = number_as<T>(factor);
          return launch_packs<3>(stream, plan, sizeof(T), [&](CUstream_st* on, const walk<3>& part, bool packs) -> int {
            return packs ? launch_walk<Launcher>(on, combine_packs_kernel<T>{part, how, by})
                         : launch_walk<Launcher>(on, combine_kernel<T>{part, how, by});
          });
        });
      },
      .combine_number = [](CUstream_st* stream, const walk<2>& plan, dtype type, kernel_operation how,
                           kernel_number value) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          const T with = number_as<T>(value);
          return launch_packs<2>(stream, plan, sizeof(T), [&](CUstream_st* on, const walk<2>& part, bool packs) -> int {
            return packs ? launch_walk<Launcher>(on, combine_number_packs_kernel<T>{part, how, with})
                         : launch_walk<Launcher>(on, combine_number_kernel<T>{part, how, with});
          });
        });
      },
      .sum = [](CUstream_st* stream, const walk<2>& plan, const walk<1>& reduced, dtype from) -> int {
        const std::int64_t count = reduced.empty ? 0 : element_count(reduced);
        return visit_arithmetic(from, [&]<class T>(std::type_identity<T>) {
          return launch_walk<Launcher>(stream, sum_kernel<T>{plan, reduced, count});
        });
      },
      .function = [](CUstream_st* stream, const walk<2>& plan, dtype type, unary_function f,
                     const function_numbers& with) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          return launch_walk<Launcher>(
              stream, function_kernel<T>{plan, f, static_cast<T>(with.first), static_cast<T>(with.second)});
        });
      },
      .function_gradient = [](CUstream_st* stream, const walk<3>& plan, dtype type, unary_function f,
                              const function_numbers& with) -> int {
        return visit_floating(type, [&]<class T>(std::type_identity<T>) {
          return launch_walk<Launcher>(
              stream, function_gradient_kernel<T>{plan, f, static_cast<T>(with.first), static_cast<T>(with.second)});
        });
      },
      .pair = [](CUstream_st* stream, const walk<3>& plan, dtype type, binary_function f) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          return launch_walk<Launcher>(stream, pair_kernel<T>{plan, f});
        });
      },
      .pair_gradient = [](CUstream_st* stream, const walk<4>& plan, dtype type, binary_function f,
                          std::size_t input) -> int {
        return visit_floating(type, [&]<class T>(std::type_identity<T>) {
          return launch_walk<Launcher>(stream, pair_gradient_kernel<T>{plan, f, input});
        });
      },
      .compare = [](CUstream_st* stream, const walk<3>& plan, dtype from, comparison how) -> int {
        return visit_arithmetic(from, [&]<class T>(std::type_identity<T>) {
          return launch_walk<Launcher>(stream, compare_kernel<T>{plan, how});
        });
      },
      .choose = [](CUstream_st* stream, const walk<4>& plan, std::size_t size) -> int {
        switch (size) {
          case 1: return launch_walk<Launcher>(stream, choose_kernel<std::uint8_t>{plan});
          case 2: return launch_walk<Launcher>(stream, choose_kernel<std::uint16_t>{plan});
          case 4: return launch_walk<Launcher>(stream, choose_kernel<std::uint32_t>{plan});
          case 8: return launch_walk<Launcher>(stream, choose_kernel<std::uint64_t>{plan});
          default: return launch_walk<Launcher>(stream, choose_kernel<sixteen_bytes>{plan});
        }
      },
      .softmax = [](CUstream_st* stream, const row_plan<2>& plan, dtype type, bool logarithm) -> int {
        return visit_floating(type, [&]<class T>(std::type_identity<T>) {
          return launch_walk<Launcher>(stream, softmax_kernel<T>{plan, logarithm});
        });
      },
      .softmax_gradient = [](CUstream_st* stream, const row_plan<3>& plan, dtype type, bool logarithm) -> int {
        return visit_floating(type, [&]<class T>(std::type_identity<T>) {
          return launch_walk<Launcher>(stream, softmax_gradient_kernel<T>{plan, logarithm});
        });
      },
      .logsumexp = [](CUstream_st* stream, const row_plan<2>& plan, dtype type) -> int {
        return visit_floating(type, [&]<class T>(std::type_identity<T>) {
          return launch_walk<Launcher>(stream, logsumexp_kernel<T>{plan});
        });
      },
      .extreme = [](CUstream_st* stream, const row_plan<3>& plan, dtype type, bool largest) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          return launch_walk<Launcher>(stream, extreme_kernel<T>{plan, largest});
        });
      },
      .scatter_add = [](CUstream_st* stream, const row_plan<3>& plan, dtype type, std::int64_t places) -> int {
        return visit_arithmetic(type, [&]<class T>(std::type_identity<T>) {
          return launch_walk<Launcher>(stream, scatter_add_kernel<T>{plan, places});
        });
      },
      .gather = [](CUstream_st* stream, const walk<3>& plan, std::size_t size, std::int64_t places,
                   std::int64_t step) -> int {
        switch (size) {
          case 1: return launch_walk<Launcher>(stream, gather_kernel<std::uint8_t>{plan, places, step});
          case 2: return launch_walk<Launcher>(stream, gather_kernel<std::uint16_t>{plan, places, step});
          case 4: return launch_walk<Launcher>(stream, gather_kernel<std::uint32_t>{plan, places, step});
          case 8: return launch_walk<Launcher>(stream, gather_kernel<std::uint64_t>{plan, places, step});
          default: return launch_walk<Launcher>(stream, gather_kernel<sixteen_bytes>{plan, places, step});
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
