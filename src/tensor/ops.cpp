#include <ferry/tensor/ops.hpp>

#include <algorithm>
#include <type_traits>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "device_kernels.hpp"
#include "layout.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

template <class F>
decltype(auto) visit_arithmetic(dtype type, std::string_view operation, F&& f) {
  switch (type) {
    case dtype::i32: return f(std::type_identity<std::int32_t>{});
    case dtype::i64: return f(std::type_identity<std::int64_t>{});
    case dtype::f32: return f(std::type_identity<float>{});
    case dtype::f64: return f(std::type_identity<double>{});
    default:
      throw_error(errc::bad_dtype, fmt::format("{} works on i32, i64, f32 and f64, not on {}; convert with to()",
                                               operation, dtype_name(type)));
  }
}

// Signed overflow is undefined, so integers are computed as their unsigned types: they wrap.
template <class T>
T plus(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using bits = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<bits>(a) + static_cast<bits>(b));
  } else {
    return a + b;
  }
}
template <class T>
T times(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using bits = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<bits>(a) * static_cast<bits>(b));
  } else {
    return a * b;
  }
}

template <class T>
T scalar_as(const scalar& value, std::string_view operation) {
  if (value.type() == scalar::kind::complex || (std::is_integral_v<T> && !value.is_integral())) {
    throw_error(errc::bad_dtype,
                fmt::format("{}: the scalar {} does not fit a tensor of {}; convert the tensor with to()", operation,
                            value.real(), dtype_name(dtype_of<T>)));
  }
  if constexpr (std::is_integral_v<T>) return static_cast<T>(value.integer());
  return static_cast<T>(value.real());
}

void need_alike(const tensor& a, const tensor& b, std::string_view operation) {
  detail::need_arithmetic(a, operation);
  if (a.device() != b.device()) {
    throw_error(errc::bad_device, fmt::format("{} of tensors on {} and on {}: move one of them with to()", operation,
                                              to_string(a.device()), to_string(b.device())));
  }
  if (a.dtype() == b.dtype()) return;
  throw_error(errc::bad_dtype, fmt::format("{} of {} and {}: convert one of them with to()", operation,
                                           dtype_name(a.dtype()), dtype_name(b.dtype())));
}

using detail::element_at;
using detail::kernel_operation;

template <class T>
detail::kernel_number as_kernel_number(T value) {
  if constexpr (std::is_integral_v<T>) return {value, 0};
  return {0, static_cast<double>(value)};
}

// The same on a device: a + factor * b or a * b, into a new tensor or into `a`.
template <class T>
tensor binary_on_device(const tensor& a, const tensor& b, kernel_operation how, T factor) {
  const dims shape = broadcast_shapes(a.shape(), b.shape());
  tensor result = empty(shape, a.dtype(), a.device());
  detail::combine_by_kernel(result, detail::expanded(a, shape), detail::expanded(b, shape), how,
                            as_kernel_number(factor));
  return result;
}
template <class T>
void update_on_device(const tensor& a, const tensor& b, std::string_view operation, kernel_operation how, T factor) {
  detail::need_distinct(a, operation);
  tensor y = detail::expanded(b, a.shape());
  if (detail::may_overlap(a, y)) y = y.clone();
  a.mark_written();
  detail::combine_by_kernel(a, a, y, how, as_kernel_number(factor));
}

// combine(a, b) into a new tensor.
template <class T, class Combine>
tensor binary(const tensor& a, const tensor& b, Combine combine) {
  const dims shape = broadcast_shapes(a.shape(), b.shape());
  tensor result = empty(shape, a.dtype());
  const tensor x = detail::expanded(a, shape);
  const tensor y = detail::expanded(b, shape);
  detail::run_walk(detail::plan_walk<3>({&result, &x, &y}), [&](const auto& at, const auto& step, std::int64_t count) {
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    if (step[0] == size && step[1] == size && step[2] == size) {
      T* out = &element_at<T>(at[0]);
      const T* left = &element_at<T>(at[1]);
      const T* right = &element_at<T>(at[2]);
      for (std::int64_t i = 0; i != count; ++i) out[i] = combine(left[i], right[i]);
      return;
    }
    for (std::int64_t i = 0; i != count; ++i) {
      element_at<T>(at[0] + i * step[0]) =
          combine(element_at<T>(at[1] + i * step[1]), element_at<T>(at[2] + i * step[2]));
    }
  });
  return result;
}

// a = combine(a, b) in place.
template <class T, class Combine>
void update(const tensor& a, const tensor& b, std::string_view operation, Combine combine) {
  detail::need_distinct(a, operation);
  tensor y = detail::expanded(b, a.shape());
  if (detail::may_overlap(a, y)) y = y.clone();
  a.mark_written();
  detail::run_walk(detail::plan_walk<2>({&a, &y}), [&](const auto& at, const auto& step, std::int64_t count) {
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    if (step[0] == size && step[1] == size) {
      T* out = &element_at<T>(at[0]);
      const T* right = &element_at<T>(at[1]);
      for (std::int64_t i = 0; i != count; ++i) out[i] = combine(out[i], right[i]);
      return;
    }
    for (std::int64_t i = 0; i != count; ++i) {
      T& out = element_at<T>(at[0] + i * step[0]);
      out = combine(out, element_at<T>(at[1] + i * step[1]));
    }
  });
}

// combine(a) into a new tensor, or in place.
template <class T, class Combine>
void each(const tensor& from, const tensor& to, Combine combine) {
  detail::run_walk(detail::plan_walk<2>({&to, &from}), [&](const auto& at, const auto& step, std::int64_t count) {
    for (std::int64_t i = 0; i != count; ++i) {
      element_at<T>(at[0] + i * step[0]) = combine(element_at<T>(at[1] + i * step[1]));
    }
  });
}

// add and mul by a scalar, new and in place, differ only in these two parameters.
template <bool Multiply>
void with_scalar(const tensor& from, const tensor& to, const scalar& value, std::string_view operation) {
  visit_arithmetic(from.dtype(), operation, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T number = scalar_as<T>(value, operation);
    if (to.same_as(from)) to.mark_written();
    if (!from.device().is_cpu()) {
      detail::combine_by_kernel(to, from, Multiply ? kernel_operation::multiply : kernel_operation::add,
                                as_kernel_number(number));
      return;
    }
    each<T>(from, to, [number](T x) { return Multiply ? times(x, number) : plus(x, number); });
  });
}

scalar negated(const scalar& value) {
  // 0 - x wraps for the lowest integer, as addition does.
  if (value.is_integral()) return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(value.integer()));
  return value.type() == scalar::kind::complex ? value : scalar(-value.real());
}

tensor scaled_sum(const tensor& a, const tensor& b, const scalar& alpha, std::string_view operation) {
  need_alike(a, b, operation);
  return visit_arithmetic(a.dtype(), operation, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T factor = scalar_as<T>(alpha, operation);
    if (!a.device().is_cpu()) return binary_on_device<T>(a, b, kernel_operation::add, factor);
    if (factor == T{1}) return binary<T>(a, b, [](T x, T y) { return plus(x, y); });
    return binary<T>(a, b, [factor](T x, T y) { return plus(x, times(factor, y)); });
  });
}

const tensor& scaled_update(const tensor& a, const tensor& b, const scalar& alpha, std::string_view operation) {
  need_alike(a, b, operation);
  visit_arithmetic(a.dtype(), operation, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T factor = scalar_as<T>(alpha, operation);
    if (!a.device().is_cpu()) return update_on_device<T>(a, b, operation, kernel_operation::add, factor);
    update<T>(a, b, operation, [factor](T x, T y) { return plus(x, times(factor, y)); });
  });
  return a;
}

}  // namespace
}  // namespace detail

dims broadcast_shapes(const dims& a, const dims& b) {
  const dims& longer = a.size() >= b.size() ? a : b;
  const dims& shorter = a.size() >= b.size() ? b : a;
  dims result = longer;
  const std::size_t added = longer.size() - shorter.size();
  for (std::size_t axis = 0; axis != shorter.size(); ++axis) {
    std::int64_t& size = result[axis + added];
    if (size == 1) {
      size = shorter[axis];
    } else if (shorter[axis] != size && shorter[axis] != 1) {
      throw_error(errc::bad_shape, fmt::format("shapes {} and {} do not fit together", to_string(a), to_string(b)));
    }
  }
  return result;
}

tensor add(const tensor& a, const tensor& b, const scalar& alpha) { return detail::scaled_sum(a, b, alpha, "add"); }
tensor sub(const tensor& a, const tensor& b, const scalar& alpha) {
  return detail::scaled_sum(a, b, detail::negated(alpha), "sub");
}
const tensor& add_(const tensor& a, const tensor& b, const scalar& alpha) {
  return detail::scaled_update(a, b, alpha, "add_");
}
const tensor& sub_(const tensor& a, const tensor& b, const scalar& alpha) {
  return detail::scaled_update(a, b, detail::negated(alpha), "sub_");
}

tensor add(const tensor& a, const scalar& b) {
  detail::need_arithmetic(a, "add");
  tensor result = empty_like(a);
  detail::with_scalar<false>(a, result, b, "add");
  return result;
}

tensor sub(const tensor& a, const scalar& b) { return add(a, detail::negated(b)); }

tensor mul(const tensor& a, const scalar& b) {
  detail::need_arithmetic(a, "mul");
  tensor result = empty_like(a);
  detail::with_scalar<true>(a, result, b, "mul");
  return result;
}

tensor mul(const tensor& a, const tensor& b) {
  detail::need_alike(a, b, "mul");
  return detail::visit_arithmetic(a.dtype(), "mul", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (!a.device().is_cpu()) return detail::binary_on_device<T>(a, b, detail::kernel_operation::multiply, T{1});
    return detail::binary<T>(a, b, [](T x, T y) { return detail::times(x, y); });
  });
}

const tensor& add_(const tensor& a, const scalar& b) {
  detail::need_arithmetic(a, "add_");
  detail::need_distinct(a, "add_");
  detail::with_scalar<false>(a, a, b, "add_");
  return a;
}

const tensor& mul_(const tensor& a, const scalar& b) {
  detail::need_arithmetic(a, "mul_");
  detail::need_distinct(a, "mul_");
  detail::with_scalar<true>(a, a, b, "mul_");
  return a;
}

const tensor& mul_(const tensor& a, const tensor& b) {
  detail::need_alike(a, b, "mul_");
  detail::visit_arithmetic(a.dtype(), "mul_", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (!a.device().is_cpu())
      return detail::update_on_device<T>(a, b, "mul_", detail::kernel_operation::multiply, T{1});
    detail::update<T>(a, b, "mul_", [](T x, T y) { return detail::times(x, y); });
  });
  return a;
}

tensor sum(const tensor& t) {
  detail::need_cpu(t, "sum");
  return detail::visit_arithmetic(t.dtype(), "sum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using total_type = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
    total_type total = 0;
    detail::run_walk(detail::plan_walk<1>({&t}), [&](const auto& at, const auto& step, std::int64_t count) {
      for (std::int64_t i = 0; i != count; ++i) {
        total = detail::plus(total, static_cast<total_type>(detail::element_at<T>(at[0] + i * step[0])));
      }
    });
    using result_type = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
    return tensor_of(static_cast<result_type>(total));
  });
}

tensor matmul(const tensor& a, const tensor& b) {
  detail::need_cpu(a, "matmul");
  detail::need_alike(a, b, "matmul");
  if (a.rank() != 2 || b.rank() != 2 || a.size(1) != b.size(0)) {
    throw_error(errc::bad_shape, fmt::format("matmul needs [n, k] and [k, m]; the shapes are {} and {}",
                                             to_string(a.shape()), to_string(b.shape())));
  }
  const tensor left = a.contiguous();
  const tensor right = b.contiguous();
  return detail::visit_arithmetic(a.dtype(), "matmul", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = a.size(0);
    const std::int64_t inner = a.size(1);
    const std::int64_t columns = b.size(1);
    tensor result = zeros({rows, columns}, a.dtype());
    const T* x = left.data<T>();
    const T* y = right.data<T>();
    T* out = result.data<T>();
    constexpr std::int64_t block = 64;  // rows of `b` that stay in the cache while all rows of `a` are processed
    for (std::int64_t from = 0; from < inner; from += block) {
      const std::int64_t to = std::min(inner, from + block);
      for (std::int64_t i = 0; i != rows; ++i) {
        T* row = out + i * columns;
        for (std::int64_t k = from; k != to; ++k) {
          const T factor = x[i * inner + k];
          const T* other = y + k * columns;
          for (std::int64_t j = 0; j != columns; ++j) row[j] = detail::plus(row[j], detail::times(factor, other[j]));
        }
      }
    }
    return result;
  });
}

}  // namespace ferry::inline v0
