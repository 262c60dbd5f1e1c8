#include <ferry/ops/comparison.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/tensor/factories.hpp>

#include "comparisons.hpp"
#include "device_arithmetic.hpp"
#include "loops.hpp"
#include "numbers.hpp"

namespace ferry::inline v0 {
namespace detail {

tensor compare(comparison how, const tensor& a, const tensor& b) {
  const dims shape = broadcast_shapes(a.shape(), b.shape());
  tensor result = empty(shape, dtype::bool_, a.device());
  const tensor left = expanded(a, shape);
  const tensor right = expanded(b, shape);
  if (!a.device().is_cpu()) {
    compare_by_kernel(result, left, right, how);
    return result;
  }
  visit_arithmetic(a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto loop = [&](auto f) { each_pair<T, decltype(f), unsigned char>(result, left, right, f); };
    switch (how) {
      case comparison::eq: return loop([](T x, T y) { return x == y; });
      case comparison::ne: return loop([](T x, T y) { return x != y; });
      case comparison::lt: return loop([](T x, T y) { return x < y; });
      case comparison::le: return loop([](T x, T y) { return x <= y; });
      case comparison::gt: return loop([](T x, T y) { return x > y; });
      case comparison::ge: return loop([](T x, T y) { return x >= y; });
    }
  });
  return result;
}

namespace {

void need_condition(const tensor& condition, std::string_view operation) {
  if (condition.dtype() == dtype::bool_) return;
  throw_error(errc::bad_dtype, fmt::format("{}: the condition is of {}; it has to be of bool", operation,
                                           dtype_name(condition.dtype())));
}

tensor elements_where(const tensor& condition, const tensor& a, const tensor& b) {
  const dims shape = broadcast_shapes(condition.shape(), broadcast_shapes(a.shape(), b.shape()));
  tensor result = empty(shape, a.dtype(), a.device());
  const tensor holds = expanded(condition, shape);
  const tensor left = expanded(a, shape);
  const tensor right = expanded(b, shape);
  if (!a.device().is_cpu()) {
    choose_by_kernel(result, holds, left, right);
    return result;
  }
  const std::size_t size = dtype_size(a.dtype());
  run_walk(plan_walk<4>({&result, &holds, &left, &right}), [&](const auto& at, const auto& step, std::int64_t count) {
    for (std::int64_t i = 0; i != count; ++i) {
      const std::size_t from = element_at<unsigned char>(at[1] + i * step[1]) != 0 ? 2 : 3;
      std::memcpy(at[0] + i * step[0], at[from] + i * step[from], size);
    }
  });
  return result;
}

tensor like(const tensor& t, const scalar& value, std::string_view operation) {
  if (t.dtype() == dtype::i32 || t.dtype() == dtype::i64) need_fitting(value, t.dtype(), operation);
  return full({}, value, t.dtype(), t.device());
}

}  // namespace
}  // namespace detail

tensor op::where::compute(const parameters&, const tensor& condition, const tensor& a, const tensor& b) {
  detail::need_condition(condition, name);
  detail::need_one_device(condition.device(), a.device(), name);
  detail::need_one_device(a.device(), b.device(), name);
  if (a.dtype() != b.dtype()) {
    throw_error(errc::bad_dtype, fmt::format("where of {} and {}: convert one of them with to()", dtype_name(a.dtype()),
                                             dtype_name(b.dtype())));
  }
  return detail::elements_where(condition, a, b);
}
tensor op::masked_fill::compute(const parameters& with, const tensor& t, const tensor& mask) {
  detail::need_condition(mask, name);
  detail::need_one_device(t.device(), mask.device(), name);
  return detail::elements_where(mask, detail::like(t, with.value, name), t);
}

tensor eq(const tensor& a, const tensor& b) { return run_operation<op::eq>({}, a, b); }
tensor ne(const tensor& a, const tensor& b) { return run_operation<op::ne>({}, a, b); }
tensor lt(const tensor& a, const tensor& b) { return run_operation<op::lt>({}, a, b); }
tensor le(const tensor& a, const tensor& b) { return run_operation<op::le>({}, a, b); }
tensor gt(const tensor& a, const tensor& b) { return run_operation<op::gt>({}, a, b); }
tensor ge(const tensor& a, const tensor& b) { return run_operation<op::ge>({}, a, b); }
tensor eq(const tensor& a, const scalar& b) { return eq(a, detail::like(a, b, op::eq::name)); }
tensor ne(const tensor& a, const scalar& b) { return ne(a, detail::like(a, b, op::ne::name)); }
tensor lt(const tensor& a, const scalar& b) { return lt(a, detail::like(a, b, op::lt::name)); }
tensor le(const tensor& a, const scalar& b) { return le(a, detail::like(a, b, op::le::name)); }
tensor gt(const tensor& a, const scalar& b) { return gt(a, detail::like(a, b, op::gt::name)); }
tensor ge(const tensor& a, const scalar& b) { return ge(a, detail::like(a, b, op::ge::name)); }
tensor where(const tensor& condition, const tensor& a, const tensor& b) {
  return run_operation<op::where>({}, condition, a, b);
}
tensor masked_fill(const tensor& t, const tensor& mask, const scalar& value) {
  return run_operation<op::masked_fill>({value}, t, mask);
}

}  // namespace ferry::inline v0
