#include <ferry/ops/softmax.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <ferry/tensor/factories.hpp>

#include "../tensor/layout.hpp"
#include "device_rows.hpp"
#include "numbers.hpp"
#include "rows.hpp"

namespace ferry::inline v0 {
namespace detail {

namespace {

tensor softmax_along(const tensor& t, std::int64_t axis, bool logarithm) {
  tensor result = empty_like(t);
  if (!t.device().is_cpu()) {
    softmax_by_kernel(result, t, axis, logarithm);
    return result;
  }
  const row_plan<2> plan = plan_rows<2>({&result, &t}, axis, t.size(axis));
  visit_floating(t.dtype(), [&]<class T>(std::type_identity<T>) { run_rows(softmax_kernel<T>{plan, logarithm}); });
  return result;
}

// Axes of tensors without axes are refused, too.
std::int64_t axis_of(const tensor& t, std::int64_t axis) {
  return static_cast<std::int64_t>(normal_axis(axis, t.rank(), t));
}

}  // namespace

tensor softmax_gradient(const tensor& gradient, const tensor& result, std::int64_t axis, bool logarithm) {
  tensor found = empty_like(gradient);
  if (!gradient.device().is_cpu()) {
    softmax_gradient_by_kernel(found, gradient, result, axis, logarithm);
    return found;
  }
  const row_plan<3> plan = plan_rows<3>({&found, &gradient, &result}, axis, gradient.size(axis));
  visit_floating(gradient.dtype(), [&]<class T>(std::type_identity<T>) {
    run_rows(softmax_gradient_kernel<T>{plan, logarithm});
  });
  return found;
}

}  // namespace detail

tensor op::softmax::compute(const parameters& with, const tensor& t) {
  return detail::softmax_along(t, with.axis, false);
}
tensor op::log_softmax::compute(const parameters& with, const tensor& t) {
  return detail::softmax_along(t, with.axis, true);
}
tensor op::logsumexp::compute(const parameters& with, const tensor& t) {
  dims kept = t.shape();
  kept[static_cast<std::size_t>(with.axis)] = 1;
  tensor result = empty(kept, t.dtype(), t.device());
  if (!t.device().is_cpu()) {
    detail::logsumexp_by_kernel(result, t, with.axis);
    return result;
  }
  const detail::row_plan<2> plan = detail::plan_rows<2>({&result, &t}, with.axis, t.size(with.axis));
  detail::visit_floating(t.dtype(),
                         [&]<class T>(std::type_identity<T>) { detail::run_rows(detail::logsumexp_kernel<T>{plan}); });
  return result;
}

tensor softmax(const tensor& t, std::int64_t axis) { return run_operation<op::softmax>({detail::axis_of(t, axis)}, t); }
tensor log_softmax(const tensor& t, std::int64_t axis) {
  return run_operation<op::log_softmax>({detail::axis_of(t, axis)}, t);
}
tensor logsumexp(const tensor& t, std::int64_t axis, bool keep) {
  const std::int64_t normal = detail::axis_of(t, axis);
  const tensor result = run_operation<op::logsumexp>({normal}, t);
  return keep ? result : result.squeeze(normal);
}

}  // namespace ferry::inline v0
