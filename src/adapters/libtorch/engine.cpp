#include <ferry/adapters/libtorch/engine.hpp>

#include <algorithm>
#include <memory>
#include <typeinfo>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <ferry/base/error.hpp>
#include <ferry/device/stream.hpp>

#include "accumulated_hook.hpp"
#include "elements.hpp"
#include "gradient_exit.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::variable_list;

const gradient_exit* exit_of(const Node& node) {
  return typeid(node) == typeid(gradient_exit) ? static_cast<const gradient_exit*>(&node) : nullptr;
}

// The first of its values that is on a CUDA device.
const torch::autograd::InputMetadata* cuda_value(const Node& node) {
  for (std::uint32_t i = 0; i != node.num_inputs(); ++i) {
    if (node.input_metadata(i).device().is_cuda()) return &node.input_metadata(i);
  }
  return nullptr;
}

// ---------------------------------------------------------------- hooks

// Those of tensors: in libtorch 1 they are hooks of the node that computed the tensor, or in the leaf; later ones list them.
template <class Hooks>
void call_hooks(const Hooks& hooks, variable_list& gradients) {
  for (const auto& hook : hooks) gradients = (*hook)(gradients);
}

void call_pre_hooks(Node& node, variable_list& gradients) {
#if TORCH_VERSION_MAJOR >= 2
  call_hooks(node.tensor_pre_hooks(), gradients);
  for (const auto& [value, hook] : node.retains_grad_hooks()) gradients = (*hook)(gradients);
#endif
  call_hooks(node.pre_hooks(), gradients);
#if TORCH_VERSION_MAJOR < 2
  if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(&node)) {
    call_hooks(torch::autograd::impl::hooks(leaf->variable), gradients);
  }
#endif
}

bool has_pre_hooks(Node& node) {
#if TORCH_VERSION_MAJOR >= 2
  if (!node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty()) return true;
#else
  const auto* leaf = dynamic_cast<const AccumulateGrad*>(&node);
  if (leaf != nullptr && !torch::autograd::impl::hooks(leaf->variable).empty()) return true;
#endif
  return !node.pre_hooks().empty();
}

// Those of a leaf that are given its gradient.
bool has_seeing_post_hooks(Node& leaf) {
  const auto& hooks = leaf.post_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& each) {
    const torch::autograd::FunctionPostHook& hook = *each;
    return typeid(hook) != typeid(accumulated_hook);
  });
}

// ---------------------------------------------------------------- gradients

at::Tensor given_to_torch(gradient_value&& gradient) {
  if (gradient.rows.defined()) return torch_rows_of(std::exchange(gradient.rows, {}));
  if (!gradient.dense.defined()) return {};
  return torch_elements_of(std::exchange(gradient.dense, {}));
}

// What the pass may write once it has the only handle: memory that something in libtorch refers to is copied.
tensor taken_from_torch(const at::Tensor& gradient) {
  tensor own = elements_of(gradient);
  if (tensor lent = lent_elements(gradient); lent.defined()) {
    // Ferry's own memory: it counts its handles, one of which libtorch's storage has.
    return own.storage().same_as(lent.storage()) ? own : own.clone();
  }
  constexpr std::size_t known = 2;  // the gradient and `own`
  return gradient.use_count() > 1 || gradient.storage().use_count() > known ? own.clone() : own;
}

// Makes of each gradient what the next node expects, as libtorch's engine does, which does not export it.
void fit(const Node& node, const torch::autograd::Edge& edge, std::size_t index, at::Tensor& gradient) {
  const auto refuse = [&](const std::string& why) {
    throw_error(errc::invalid_argument, fmt::format("{} of libtorch returned {}", node.name(), why));
  };
  const torch::autograd::InputMetadata& wanted = edge.function->input_metadata(edge.input_nr);
  if (!wanted.is_same_shape(gradient)) {
    if (!wanted.is_expandable_to_shape(gradient))
      refuse("an " + wanted.incompatible_shape_error_message(index, gradient).str());
    gradient = wanted.reduce_grad(gradient);
  }
  const at::ScalarType type = c10::typeMetaToScalarType(wanted.dtype());
  if (gradient.is_complex() && !c10::isComplexType(type)) gradient = at::real(gradient);
  if (gradient.scalar_type() != type) gradient = gradient.to(type);
  if (gradient.device() != wanted.device()) {
    if (gradient.dim() != 0) {
      refuse(fmt::format("a gradient on {} at index {} for a tensor on {}", gradient.device().str(), index,
                         wanted.device().str()));
    }
    gradient = gradient.to(wanted.device());
  }
}

void give_result(const torch::autograd::Edge& edge, const at::Tensor& gradient, gradient_value& result) {
  if (gradient.layout() == at::kSparse) {
    if (gradient.sparse_dim() == 1 && dynamic_cast<const AccumulateGrad*>(edge.function.get()) != nullptr) {
      result.rows = rows_of(gradient);
    } else {
      result.dense = elements_of(gradient.to_dense());
    }
    return;
  }
  result.dense = taken_from_torch(gradient);
}

// The gradient of a leaf that has post hooks, between its accumulation and these.
struct accumulated_gradient {
  const Node* leaf = nullptr;
  at::Tensor gradient;
};
thread_local accumulated_gradient last_accumulated;

}  // namespace
}  // namespace detail

using engine = autograd_traits<libtorch_engine>;

std::size_t engine::value_count(const node_type& node) { return node.num_inputs(); }

void engine::edges(const node_type& node, std::vector<node_edge>& to) {
  if (const auto* exit = detail::exit_of(node)) {
    to.push_back(exit->to());
    return;
  }
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    to.push_back(edge.is_valid() ? node_edge{node_ref::of<libtorch_engine>(*edge.function), edge.input_nr}
                                 : node_edge{});
  }
}

void engine::apply(node_type& node, std::span<gradient_value> gradients, std::span<gradient_value> results) {
  const bool leaves_torch = detail::exit_of(node) != nullptr;
  if (leaves_torch && !detail::has_pre_hooks(node)) {
    results[0] = std::move(gradients[0]);
    return;
  }
  const at::AutoGradMode outside(false);
  const torch::autograd::InputMetadata* const on_device = detail::cuda_value(node);
  const c10::OptionalStreamGuard stream(on_device != nullptr ? c10::optional<c10::Stream>(on_device->stream())
                                                             : c10::nullopt);
  torch::autograd::variable_list inputs;
  inputs.reserve(gradients.size());
  for (gradient_value& each : gradients) inputs.push_back(detail::given_to_torch(std::move(each)));
  detail::call_pre_hooks(node, inputs);
  if (leaves_torch) {
    if (inputs.at(0).defined()) results[0].dense = detail::taken_from_torch(inputs[0]);
    return;
  }
  torch::autograd::variable_list outputs;
  if (node.post_hooks().empty()) {
    outputs = node(std::exchange(inputs, {}));
  } else {
    outputs = node(torch::autograd::variable_list(inputs));
  }
  const torch::autograd::edge_list& edges = node.next_edges();
  if (outputs.size() != edges.size()) {
    throw_error(errc::invalid_argument, fmt::format("{} of libtorch returned {} gradients for {} inputs", node.name(),
                                                    outputs.size(), edges.size()));
  }
  for (std::size_t i = 0; i != outputs.size(); ++i) {
    if (edges[i].is_valid() && outputs[i].defined()) detail::fit(node, edges[i], i, outputs[i]);
  }
  for (const auto& hook : node.post_hooks()) outputs = (*hook)(outputs, inputs);
  inputs.clear();
  for (std::size_t i = 0; i != edges.size(); ++i) {
    if (!edges[i].is_valid() || !outputs.at(i).defined()) continue;
    detail::give_result(edges[i], outputs[i], results[i]);
    outputs[i].reset();
  }
}

// Not announced before the formula runs (will_release_variables()), which may destroy what it reads then: that it follows is known later.
void engine::release(node_type& node) { node.release_variables(); }

std::uint64_t engine::order(const node_type& node) { return node.sequence_nr(); }

stream engine::on(const node_type& node) {
  // Any stream of ferry there: apply() runs the formula on the stream of libtorch on which the operation ran, between what was
  // queued on this one and what will be.
  const torch::autograd::InputMetadata* const value = detail::cuda_value(node);
  return value == nullptr ? stream() : default_stream(from_torch(value->device()));
}

std::string engine::describe(const node_type& node) {
  std::string text = fmt::format("{} (node {} of libtorch", node.name(), node.sequence_nr());
  if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node)) {
    text = fmt::format("{} (leaf of libtorch, {}", node.name(), c10::str(leaf->variable.sizes()));
  }
  if (node.num_inputs() != 0) {
    text += fmt::format(", {}", c10::toString(c10::typeMetaToScalarType(node.input_metadata(0).dtype())));
  }
  return text + ")";
}

std::optional<engine_leaf> engine::leaf(const node_type& node) {
  const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node);
  if (leaf == nullptr) return std::nullopt;
  // It leads back to the leaf: torch_leaf() follows the edge.
  const tensor value = detail::elements_of(leaf->variable);
  auto self = std::const_pointer_cast<torch::autograd::Node>(node.shared_from_this());
  const node_edge edge{node_ref::of<libtorch_engine>(*self), 0};
  lead_gradient_to(value, {edge, std::move(self)});
  return engine_leaf{reinterpret_cast<std::uintptr_t>(leaf->variable.unsafeGetTensorImpl()), value};
}

bool engine::needs_dense(const node_type& leaf) {
  auto& node = const_cast<node_type&>(leaf);
  return detail::has_pre_hooks(node) || detail::has_seeing_post_hooks(node);
}

void engine::before_accumulation(node_type& leaf, tensor& gradient) {
  const bool has_post_hooks = detail::has_seeing_post_hooks(leaf);
  if (!has_post_hooks && !detail::has_pre_hooks(leaf)) return;
  const at::AutoGradMode outside(false);
  torch::autograd::variable_list gradients(1);
  if (gradient.defined()) gradients[0] = detail::torch_elements_of(gradient);
  const bool replaces = detail::has_pre_hooks(leaf);
  detail::call_pre_hooks(leaf, gradients);
  if (has_post_hooks) detail::last_accumulated = {&leaf, gradients.at(0)};
  if (replaces) gradient = gradients.at(0).defined() ? detail::taken_from_torch(gradients[0]) : tensor();
}

void engine::after_accumulation(node_type& leaf) {
  if (leaf.post_hooks().empty()) return;
  const at::AutoGradMode outside(false);
  torch::autograd::variable_list inputs(1);
  detail::accumulated_gradient last = std::exchange(detail::last_accumulated, {});
  if (last.leaf == &leaf) inputs[0] = std::move(last.gradient);
  torch::autograd::variable_list outputs;
  for (const auto& hook : leaf.post_hooks()) outputs = (*hook)(outputs, inputs);
}

// ---------------------------------------------------------------- gradients of a context

at::Tensor torch_leaf(const dist_autograd::leaf_gradient& of) {
  const held_edge edge = gradient_edge_of(of.leaf);
  auto* const node = edge.edge.to.as<libtorch_engine>();
  const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
  return leaf == nullptr ? at::Tensor() : leaf->variable;
}

at::Tensor torch_value(const dist_autograd::leaf_gradient& of) {
  if (of.rows.defined()) return detail::torch_rows_of(of.rows);
  return of.dense.defined() ? detail::torch_elements_of(of.dense) : at::Tensor();
}

std::vector<torch_leaf_gradient> torch_gradients(const dist_autograd::gradient_map& in) {
  std::vector<torch_leaf_gradient> result;
  for (const dist_autograd::leaf_gradient& each : in) {
    if (at::Tensor leaf = torch_leaf(each); leaf.defined()) result.push_back({std::move(leaf), torch_value(each)});
  }
  return result;
}

at::Tensor torch_gradient(const dist_autograd::gradient_map& in, const at::Tensor& leaf) {
  for (const dist_autograd::leaf_gradient& each : in) {
    if (torch_leaf(each).is_same(leaf)) return torch_value(each);
  }
  return {};
}

}  // namespace ferry::inline v0
