#include <ferry/optim/clip.hpp>

#include <cmath>
#include <vector>

#include <ferry/autograd/gradient.hpp>
#include <ferry/tensor/factories.hpp>

#include "apply.hpp"
#include "norms.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

std::vector<tensor> gradients_of(std::span<const tensor> parameters) {
  std::vector<tensor> found;
  found.reserve(parameters.size());
  for (const tensor& each : parameters) {
    if (each.defined() && !each.requires_grad()) {
      found.emplace_back();  // frozen
    } else if (each.defined() && has_sparse_grad(each)) {
      // An element of the gradient has to be one number: the sum of the values of its row.
      set_sparse_grad(each, sparse_grad(each).coalesce());
      found.push_back(sparse_grad(each).values());
    } else {
      found.push_back(each.defined() ? grad(each) : tensor());
    }
  }
  return found;
}

template <class T>
void square_sums_on_host(const tensor& t, double* parts) {
  const walk<1> plan = plan_walk<1>({&t});
  // The parts of the kernel, in one pass: element i belongs to part i % square_sum_parts.
  std::int64_t part = 0;
  run_walk(plan, [&](const auto& at, const auto& step, std::int64_t count) {
    for (std::int64_t i = 0; i != count; ++i) {
      const auto value = static_cast<double>(element_at<T>(at[0] + i * step[0]));
      parts[part] += value * value;
      if (++part == square_sum_parts) part = 0;
    }
  });
}

// The partial sums, on the gradient's device.
tensor square_sums(const tensor& t) {
  tensor parts = zeros({square_sum_parts}, dtype::f64, t.device());
  if (by_kernel(t)) {
    start_square_sums(t, parts);
  } else if (t.dtype() == dtype::f32) {
    square_sums_on_host<float>(t, parts.data<double>());
  } else {
    square_sums_on_host<double>(t, parts.data<double>());
  }
  return parts;
}

}  // namespace

std::vector<tensor> need_gradients(const char* what, std::span<const tensor> gradients) {
  std::vector<tensor> present;
  for (std::size_t i = 0; i != gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    need_parameter(what, i, gradients[i]);
    present.push_back(gradients[i]);
  }
  return present;
}

tensor norm_of(std::span<const tensor> gradients) {
  const device where = gradients.empty() ? device{} : gradients.front().device();
  const auto count = static_cast<std::int64_t>(gradients.size());
  const tensor parts = empty({count, square_sum_parts}, dtype::f64, where);
  for (std::int64_t i = 0; i != count; ++i) {
    parts.select(0, i).copy_(square_sums(gradients[static_cast<std::size_t>(i)]));
  }
  tensor norm = empty({}, dtype::f64, where);
  if (!where.is_cpu()) {
    start_norm(parts, norm);
  } else {
    norm_kernel{parts.data<double>(), parts.numel(), norm.data<double>()}(0);
  }
  return norm;
}

void rescale(std::span<const tensor> gradients, const tensor& norm, double most) {
  if (std::isinf(most)) return;
  tensor here = norm;
  for (const tensor& each : gradients) {
    if (here.device() != each.device()) here = norm.to(each.device());
    const rescale_update update{.norm = here.data<double>(), .most = most};
    apply_update(operands_of(each, each), update);
  }
}

}  // namespace detail

void clip_value_(std::span<const tensor> gradients, double limit) {
  detail::need_bound("clip_value_", "limit", limit);
  const detail::clip_update update{.limit = limit};
  for (const tensor& each : detail::need_gradients("clip_value_", gradients)) {
    detail::apply_update(detail::operands_of(each, each), update);
  }
}

void clip_grad_value_(std::span<const tensor> parameters, double limit) {
  clip_value_(detail::gradients_of(parameters), limit);
}

tensor clip_norm_(std::span<const tensor> gradients, double most) {
  detail::need_bound("clip_norm_", "most", most);
  const std::vector<tensor> present = detail::need_gradients("clip_norm_", gradients);
  tensor norm = detail::norm_of(present);
  detail::rescale(present, norm, most);
  return norm;
}

tensor clip_grad_norm_(std::span<const tensor> parameters, double most) {
  return clip_norm_(detail::gradients_of(parameters), most);
}

}  // namespace ferry::inline v0
