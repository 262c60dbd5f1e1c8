#include <ferry/autograd/backward.hpp>

#include <utility>

#include <fmt/format.h>

#include <ferry/autograd/detail/memory.hpp>
#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/traced_range.hpp>

#include "backward_pass.hpp"
#include "roots.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr range_description backward_range{"backward", range_kind::autograd};
constexpr range_description gradients_range{"gradients", range_kind::autograd};

void add_roots(backward_pass& pass, std::span<const tensor> roots, std::span<const tensor> given) {
  need_roots("backward", roots, given);
  for (std::size_t i = 0; i != roots.size(); ++i) {
    need_defined_root(roots[i], i);
    graph_edge to = gradient_edge(roots[i]);
    if (!to) refuse_root_without_gradient(i);
    pass.add_root(std::move(to), gradient_of_root(roots[i], i, given));
  }
}

}  // namespace
}  // namespace detail

void backward(tensor_span roots, const backward_options& options) {
  const detail::traced_range range(detail::backward_range);
  const no_grad outside;
  detail::backward_pass pass(options.retain_graph);
  detail::add_roots(pass, roots, options.gradients);
  pass.run();
}

std::vector<tensor> gradients(tensor_span roots, tensor_span inputs, const backward_options& options) {
  const detail::traced_range range(detail::gradients_range);
  const no_grad outside;
  detail::backward_pass pass(options.retain_graph);
  detail::add_roots(pass, roots, options.gradients);
  for (std::size_t i = 0; i != inputs.size(); ++i) {
    graph_edge at = gradient_edge(inputs[i]);
    if (!at) throw_error(errc::invalid_argument, fmt::format("input {} requires no gradient", i));
    (void)pass.add_target(at);
  }
  if (inputs.empty()) return {};
  pass.run();
  std::vector<tensor> found;
  found.reserve(inputs.size());
  for (std::size_t i = 0; i != inputs.size(); ++i) found.push_back(pass.result(i));
  // The caller may write them.
  for (tensor& each : found) {
    if (each.defined() && !detail::is_only_owner(each)) each = each.clone();
  }
  return found;
}

}  // namespace ferry::inline v0
