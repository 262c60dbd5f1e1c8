#pragma once

// The functions of elements and their slopes, for the CPU and for kernels.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <ferry/ops/elementwise.hpp>

#include "../tensor/kernels.hpp"

namespace ferry::inline v0::detail {

/// -x; integers wrap.
template <class T>
FERRY_KERNEL T negative(T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(x));
  } else {
    return -x;
  }
}

template <unary_function F, class T>
FERRY_KERNEL T function_value(T x, T first, T second) {
  if constexpr (F == unary_function::neg) {
    return negative(x);
  } else if constexpr (F == unary_function::abs) {
    if constexpr (std::is_integral_v<T>) return x < 0 ? negative(x) : x;
    return std::fabs(x);
  } else if constexpr (F == unary_function::relu) {
    return x <= T{0} ? T{0} : x;
  } else if constexpr (F == unary_function::exp) {
    return std::exp(x);
  } else if constexpr (F == unary_function::log) {
    return std::log(x);
  } else if constexpr (F == unary_function::sqrt) {
    return std::sqrt(x);
  } else if constexpr (F == unary_function::power) {
    return std::pow(x, first);
  } else if constexpr (F == unary_function::divide) {
    return x / first;
  } else if constexpr (F == unary_function::clamp) {
    const T raised = x < first ? first : x;
    return raised > second ? second : raised;
  } else if constexpr (F == unary_function::tanh) {
    return std::tanh(x);
  } else if constexpr (F == unary_function::sigmoid) {
    return T{1} / (T{1} + std::exp(-x));
  } else if constexpr (F == unary_function::silu) {
    return x / (T{1} + std::exp(-x));
  } else if constexpr (F == unary_function::softplus) {
    const T scaled = x * first;
    if (scaled > second) return x;
    return (scaled > T{0} ? x : T{0}) + std::log1p(std::exp(-std::fabs(scaled))) / first;
  } else if constexpr (F == unary_function::gelu) {
    return x * (T{1} + std::erf(x * T(0.70710678118654752440))) / T{2};
  } else {
    const T inner = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
    return x * (T{1} + std::tanh(inner)) / T{2};
  }
}

/// `from` is the argument or the value: slope_source_of(F).
template <unary_function F, class T>
FERRY_KERNEL T function_slope(T from, T first, T second) {
  if constexpr (F == unary_function::neg) {
    return T{-1};
  } else if constexpr (F == unary_function::abs) {
    return from > T{0} ? T{1} : from < T{0} ? T{-1} : from;  // 0 and NaN
  } else if constexpr (F == unary_function::relu) {
    return from <= T{0} ? T{0} : T{1};  // NaN lets the gradient pass
  } else if constexpr (F == unary_function::exp) {
    return from;
  } else if constexpr (F == unary_function::log) {
    return T{1} / from;
  } else if constexpr (F == unary_function::sqrt) {
    return T{0.5} / from;
  } else if constexpr (F == unary_function::power) {
    return first == T{0} ? T{0} : first * std::pow(from, first - T{1});
  } else if constexpr (F == unary_function::divide) {
    return T{1} / first;
  } else if constexpr (F == unary_function::clamp) {
    return from >= first && from <= second ? T{1} : T{0};
  } else if constexpr (F == unary_function::tanh) {
    return T{1} - from * from;
  } else if constexpr (F == unary_function::sigmoid) {
    return from * (T{1} - from);
  } else if constexpr (F == unary_function::silu) {
    const T part = function_value<unary_function::sigmoid>(from, first, second);
    return part * (T{1} + from * (T{1} - part));
  } else if constexpr (F == unary_function::softplus) {
    const T scaled = from * first;
    return scaled > second ? T{1} : function_value<unary_function::sigmoid>(scaled, first, second);
  } else if constexpr (F == unary_function::gelu) {
    const T below = (T{1} + std::erf(from * T(0.70710678118654752440))) / T{2};
    return below + from * std::exp(from * from / T{-2}) * T(0.39894228040143267794);
  } else {
    const T inner = std::tanh(T(0.79788456080286535588) * (from + T(0.044715) * from * from * from));
    const T slope = T(0.79788456080286535588) * (T{1} + T(0.134145) * from * from);
    return (T{1} + inner) / T{2} + from * (T{1} - inner * inner) * slope / T{2};
  }
}

template <binary_function F, class T>
FERRY_KERNEL T function_value(T a, T b) {
  if constexpr (F == binary_function::divide) {
    return a / b;
  } else if constexpr (F == binary_function::power) {
    return std::pow(a, b);
  } else if constexpr (F == binary_function::minimum) {
    return a < b || a != a ? a : b;
  } else if constexpr (F == binary_function::maximum) {
    return a > b || a != a ? a : b;
  } else {
    return (a > T{0} ? a : T{0}) - a * b + std::log1p(std::exp(-std::fabs(a)));
  }
}

/// In the direction of `a` (Input 0) or `b`. Where both are the extreme, each has half of it.
template <binary_function F, std::size_t Input, class T>
FERRY_KERNEL T function_slope(T a, T b) {
  if constexpr (F == binary_function::divide) {
    return Input == 0 ? T{1} / b : -(a / b) / b;
  } else if constexpr (F == binary_function::power) {
    if constexpr (Input == 0) return b == T{0} ? T{0} : b * std::pow(a, b - T{1});
    return a == T{0} && b >= T{0} ? T{0} : std::pow(a, b) * std::log(a);
  } else if constexpr (F == binary_function::bce_with_logits) {
    return Input == 0 ? function_value<unary_function::sigmoid>(a, T{0}, T{0}) - b : -a;
  } else {
    if (a == b) return T{0.5};
    const bool first = F == binary_function::minimum ? a < b || a != a : a > b || a != a;
    return first == (Input == 0) ? T{1} : T{0};
  }
}

/// gradient * slope. Where the slope is 0, nothing comes through, an infinite gradient neither.
template <class T>
FERRY_KERNEL T gradient_times(T gradient, T slope) {
  return slope == T{0} ? T{0} : gradient * slope;
}

/// Calls f with the function as a constant.
template <class Visitor>
FERRY_KERNEL auto visit_function(unary_function f, const Visitor& visitor) {
  using enum unary_function;
  switch (f) {
    case neg: return visitor(std::integral_constant<unary_function, neg>{});
    case abs: return visitor(std::integral_constant<unary_function, abs>{});
    case relu: return visitor(std::integral_constant<unary_function, relu>{});
    case exp: return visitor(std::integral_constant<unary_function, exp>{});
    case log: return visitor(std::integral_constant<unary_function, log>{});
    case sqrt: return visitor(std::integral_constant<unary_function, sqrt>{});
    case power: return visitor(std::integral_constant<unary_function, power>{});
    case divide: return visitor(std::integral_constant<unary_function, divide>{});
    case clamp: return visitor(std::integral_constant<unary_function, clamp>{});
    case tanh: return visitor(std::integral_constant<unary_function, tanh>{});
    case sigmoid: return visitor(std::integral_constant<unary_function, sigmoid>{});
    case silu: return visitor(std::integral_constant<unary_function, silu>{});
    case softplus: return visitor(std::integral_constant<unary_function, softplus>{});
    case gelu: return visitor(std::integral_constant<unary_function, gelu>{});
    default: return visitor(std::integral_constant<unary_function, gelu_tanh>{});
  }
}
template <class Visitor>
FERRY_KERNEL auto visit_function(binary_function f, const Visitor& visitor) {
  using enum binary_function;
  switch (f) {
    case divide: return visitor(std::integral_constant<binary_function, divide>{});
    case power: return visitor(std::integral_constant<binary_function, power>{});
    case minimum: return visitor(std::integral_constant<binary_function, minimum>{});
    case maximum: return visitor(std::integral_constant<binary_function, maximum>{});
    default: return visitor(std::integral_constant<binary_function, bce_with_logits>{});
  }
}

/// Whether integers have the function.
constexpr bool for_integers(unary_function f) {
  return f == unary_function::neg || f == unary_function::abs || f == unary_function::relu;
}
constexpr bool for_integers(binary_function f) {
  return f == binary_function::minimum || f == binary_function::maximum;
}

}  // namespace ferry::inline v0::detail
