#pragma once

// The kernels of functions of elements, of comparisons and of choices; see kernels.hpp.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../tensor/kernels.hpp"
#include "comparisons.hpp"
#include "functions.hpp"

namespace ferry::inline v0::detail {

/// 0 = f(1)
template <class T>
struct function_kernel {
  walk<2> plan;
  unary_function function;
  T first;
  T second;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan, index);
    const T x = element_at<T>(at[1]);
    element_at<T>(at[0]) = visit_function(function, [&](auto f) {
      if constexpr (std::is_integral_v<T> && !for_integers(decltype(f)::value))
        return T{0};
      else
        return function_value<decltype(f)::value>(x, first, second);
    });
  }
};

/// 0 = 1 * slope(2)
template <class T>
struct function_gradient_kernel {
  walk<3> plan;
  unary_function function;
  T first;
  T second;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan, index);
    const T from = element_at<T>(at[2]);
    const T slope =
        visit_function(function, [&](auto f) { return function_slope<decltype(f)::value>(from, first, second); });
    element_at<T>(at[0]) = gradient_times(element_at<T>(at[1]), slope);
  }
};

/// 0 = f(1, 2)
template <class T>
struct pair_kernel {
  walk<3> plan;
  binary_function function;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan, index);
    const T a = element_at<T>(at[1]);
    const T b = element_at<T>(at[2]);
    element_at<T>(at[0]) = visit_function(function, [&](auto f) {
      if constexpr (std::is_integral_v<T> && !for_integers(decltype(f)::value))
        return T{0};
      else
        return function_value<decltype(f)::value>(a, b);
    });
  }
};

/// 0 = 1 * slope(2, 3) in the direction of `input`
template <class T>
struct pair_gradient_kernel {
  walk<4> plan;
  binary_function function;
  std::size_t input;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan, index);
    const T a = element_at<T>(at[2]);
    const T b = element_at<T>(at[3]);
    const T slope = visit_function(function, [&](auto f) {
      return input == 0 ? function_slope<decltype(f)::value, 0>(a, b) : function_slope<decltype(f)::value, 1>(a, b);
    });
    element_at<T>(at[0]) = gradient_times(element_at<T>(at[1]), slope);
  }
};

/// 0, of bool, = 1 compared with 2
template <class T>
struct compare_kernel {
  walk<3> plan;
  comparison how;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan, index);
    element_at<unsigned char>(at[0]) = compares(how, element_at<T>(at[1]), element_at<T>(at[2])) ? 1 : 0;
  }
};

/// 0 = 1, of bool, ? 2 : 3, for elements of the size of Bits
template <class Bits>
struct choose_kernel {
  walk<4> plan;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan, index);
    element_at<Bits>(at[0]) = element_at<Bits>(element_at<unsigned char>(at[1]) != 0 ? at[2] : at[3]);
  }
};

}  // namespace ferry::inline v0::detail
