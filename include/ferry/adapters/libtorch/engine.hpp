#pragma once

// libtorch's graph in distributed passes: an at::Tensor that requires a gradient takes its history along, when a call sends it
// within a context, and one that arrives leads its gradient back to the worker that it came from.
//
//   at::Tensor forward(const at::Tensor& x);                          // on worker1; uses parameters that live there
//   ferry::dist_autograd::context pass;
//   at::Tensor y = ferry::rpc_sync<forward>("worker1", x);
//   at::Tensor loss = torch::mse_loss(head(y), target);
//   pass.backward(ferry::from_torch(loss));
//   ferry::torch_gradient(pass.gradients(), head->weight);            // of a leaf of this worker
//
// ferry's passes run libtorch's nodes: formulas, custom functions, hooks of tensors and nodes as libtorch's own engine does, but one
// after the other on the threads of the pass. A hook on a tensor sees its whole gradient, once for each pass. Graphs may change
// between the libraries (from_torch(), to_torch()) any number of times. Gradients are filed in the context, never in
// at::Tensor::grad(), which is neither read nor written; hooks of a leaf (register_hook(), post hooks of its node) run, those that
// wait for grad() (register_post_accumulate_grad_hook() of libtorch 2) do not. There are no gradients of gradients.
//
// Tensors that change workers or libraries with a gradient are of f32 or f64. Within libtorch's graph other types occur; a
// gradient that comes from several users of one tensor is added by ferry, in i32, i64, f32 and f64 alone. Sparse gradients
// of tables (torch::nn::Embedding with sparse) stay sparse in leaves. Tensors of other layouts (mkldnn, nested) have no gradients here.
//
// libtorch's own backward() does not leave its library: it throws where it meets a tensor that came with a call.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/adapters/libtorch/tensor.hpp>
#include <ferry/autograd/dist/backward.hpp>
#include <ferry/autograd/dist/engine.hpp>

namespace torch::autograd {
struct Node;
}

namespace ferry::inline v0 {

/// Tag of libtorch's graph.
struct libtorch_engine {};

template <>
struct autograd_traits<libtorch_engine> {
  static constexpr std::string_view name = "libtorch";
  using node_type = torch::autograd::Node;
  static std::size_t value_count(const node_type& node);
  static void edges(const node_type& node, std::vector<node_edge>& to);
  static void apply(node_type& node, std::span<gradient_value> gradients, std::span<gradient_value> results);
  static void release(node_type& node);
  static std::uint64_t order(const node_type& node);
  static stream on(const node_type& node);
  static std::string describe(const node_type& node);
  static std::optional<engine_leaf> leaf(const node_type& node);
  static bool needs_dense(const node_type& leaf);
  static void before_accumulation(node_type& leaf, tensor& gradient);
  static void after_accumulation(node_type& leaf);
};

/// The gradient that a context has for a leaf of libtorch, dense or sparse; undefined if it has none. It shares memory with the
/// context's, which later passes add to.
[[nodiscard]] at::Tensor torch_gradient(const dist_autograd::gradient_map& in, const at::Tensor& leaf);

/// A leaf of libtorch and its gradient.
struct torch_leaf_gradient {
  at::Tensor leaf;
  at::Tensor gradient;
};
/// All of them; leaves of other engines are left out.
[[nodiscard]] std::vector<torch_leaf_gradient> torch_gradients(const dist_autograd::gradient_map& in);
/// The leaf of libtorch that a gradient is for; undefined if it is one of another engine.
[[nodiscard]] at::Tensor torch_leaf(const dist_autograd::leaf_gradient& of);
/// The gradient itself, dense or sparse.
[[nodiscard]] at::Tensor torch_value(const dist_autograd::leaf_gradient& of);

}  // namespace ferry::inline v0
