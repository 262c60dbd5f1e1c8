#include <ferry/ops/arithmetic.hpp>

#include <cstdint>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "../tensor/layout.hpp"
#include "device_arithmetic.hpp"
#include "loops.hpp"
#include "numbers.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// to = a + factor * b, or a * b, of one shape; `to` may be `a`.
void combine(const tensor& to, const tensor& a, const tensor& b, kernel_operation how, const scalar& factor) {
  visit_arithmetic(a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T number = scalar_as<T>(factor);
    if (!a.device().is_cpu()) {
      combine_by_kernel(to, a, b, how, as_kernel_number(number));
    } else if (how == kernel_operation::multiply) {
      each_pair<T>(to, a, b, [](T x, T y) { return times(x, y); });
    } else if (number == T{1}) {
      each_pair<T>(to, a, b, [](T x, T y) { return plus(x, y); });
    } else {
      each_pair<T>(to, a, b, [number](T x, T y) { return plus(x, times(number, y)); });
    }
  });
}

// to = a + value, or a * value; `to` may be `a`.
void combine(const tensor& to, const tensor& a, kernel_operation how, const scalar& value) {
  visit_arithmetic(a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T number = scalar_as<T>(value);
    if (!a.device().is_cpu()) {
      combine_by_kernel(to, a, how, as_kernel_number(number));
    } else if (how == kernel_operation::multiply) {
      each_element<T>(to, a, [number](T x) { return times(x, number); });
    } else {
      each_element<T>(to, a, [number](T x) { return plus(x, number); });
    }
  });
}

tensor combined(const tensor& a, const tensor& b, kernel_operation how, const scalar& factor) {
  const dims shape = broadcast_shapes(a.shape(), b.shape());
  tensor result = empty(shape, a.dtype(), a.device());
  combine(result, expanded(a, shape), expanded(b, shape), how, factor);
  return result;
}

tensor combined(const tensor& a, kernel_operation how, const scalar& value) {
  tensor result = empty_like(a);
  combine(result, a, how, value);
  return result;
}

void update(const tensor& a, const tensor& b, kernel_operation how, const scalar& factor) {
  tensor y = expanded(b, a.shape());
  if (may_overlap(a, y)) y = y.clone();
  combine(a, a, y, how, factor);
}

scalar negated(const scalar& value) {
  // 0 - x wraps for the lowest integer, as addition does.
  if (value.is_integral()) return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(value.integer()));
  return value.type() == scalar::kind::complex ? value : scalar(-value.real());
}

}  // namespace

void need_fitting(const scalar& value, dtype type, std::string_view operation) {
  const bool integers = type == dtype::i32 || type == dtype::i64;
  if (value.type() != scalar::kind::complex && (!integers || value.is_integral())) return;
  throw_error(errc::bad_dtype,
              fmt::format("{}: the scalar {} does not fit a tensor of {}; convert the tensor with to()", operation,
                          value.real(), dtype_name(type)));
}

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

using detail::kernel_operation;

tensor op::add::compute(const parameters& with, const tensor& a, const tensor& b) {
  detail::need_fitting(with.alpha, a.dtype(), name);
  return detail::combined(a, b, kernel_operation::add, with.alpha);
}
tensor add(const tensor& a, const tensor& b, const scalar& alpha) { return run_operation<op::add>({alpha}, a, b); }

tensor op::sub::compute(const parameters& with, const tensor& a, const tensor& b) {
  detail::need_fitting(with.alpha, a.dtype(), name);
  return detail::combined(a, b, kernel_operation::add, detail::negated(with.alpha));
}
tensor sub(const tensor& a, const tensor& b, const scalar& alpha) { return run_operation<op::sub>({alpha}, a, b); }

tensor op::mul::compute(const parameters&, const tensor& a, const tensor& b) {
  return detail::combined(a, b, kernel_operation::multiply, 1);
}
tensor mul(const tensor& a, const tensor& b) { return run_operation<op::mul>({}, a, b); }

tensor op::add_scalar::compute(const parameters& with, const tensor& a) {
  detail::need_fitting(with.value, a.dtype(), "add");
  return detail::combined(a, kernel_operation::add, with.value);
}
tensor add(const tensor& a, const scalar& b) { return run_operation<op::add_scalar>({b}, a); }
tensor sub(const tensor& a, const scalar& b) { return add(a, detail::negated(b)); }

tensor op::mul_scalar::compute(const parameters& with, const tensor& a) {
  detail::need_fitting(with.value, a.dtype(), "mul");
  return detail::combined(a, kernel_operation::multiply, with.value);
}
tensor mul(const tensor& a, const scalar& b) { return run_operation<op::mul_scalar>({b}, a); }

void op::add_::check(const parameters& with, const tensor& a, const tensor& b) {
  detail::need_fitting(with.alpha, a.dtype(), name);
  detail::need_expands(b, a.shape());
}
void op::add_::compute(const parameters& with, const tensor& a, const tensor& b) {
  detail::update(a, b, kernel_operation::add, with.alpha);
}
const tensor& add_(const tensor& a, const tensor& b, const scalar& alpha) {
  run_operation<op::add_>({alpha}, a, b);
  return a;
}

void op::sub_::check(const parameters& with, const tensor& a, const tensor& b) {
  detail::need_fitting(with.alpha, a.dtype(), name);
  detail::need_expands(b, a.shape());
}
void op::sub_::compute(const parameters& with, const tensor& a, const tensor& b) {
  detail::update(a, b, kernel_operation::add, detail::negated(with.alpha));
}
const tensor& sub_(const tensor& a, const tensor& b, const scalar& alpha) {
  run_operation<op::sub_>({alpha}, a, b);
  return a;
}

void op::mul_::check(const parameters&, const tensor& a, const tensor& b) { detail::need_expands(b, a.shape()); }
void op::mul_::compute(const parameters&, const tensor& a, const tensor& b) {
  detail::update(a, b, kernel_operation::multiply, 1);
}
const tensor& mul_(const tensor& a, const tensor& b) {
  run_operation<op::mul_>({}, a, b);
  return a;
}

void op::add_scalar_::check(const parameters& with, const tensor& a) {
  detail::need_fitting(with.value, a.dtype(), "add_");
}
void op::add_scalar_::compute(const parameters& with, const tensor& a) {
  detail::combine(a, a, kernel_operation::add, with.value);
}
const tensor& add_(const tensor& a, const scalar& b) {
  run_operation<op::add_scalar_>({b}, a);
  return a;
}

void op::mul_scalar_::check(const parameters& with, const tensor& a) {
  detail::need_fitting(with.value, a.dtype(), "mul_");
}
void op::mul_scalar_::compute(const parameters& with, const tensor& a) {
  detail::combine(a, a, kernel_operation::multiply, with.value);
}
const tensor& mul_(const tensor& a, const scalar& b) {
  run_operation<op::mul_scalar_>({b}, a);
  return a;
}

}  // namespace ferry::inline v0
