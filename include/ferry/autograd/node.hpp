#pragma once

// The graph of gradients: a node for each operation whose result requires a gradient, and an edge from it to what computed
// each of its inputs.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/device/stream.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

class graph_node;
namespace detail {
class backward_pass;
class gradient_hooks;
}  // namespace detail

/// Where the gradient of a tensor goes: value `value` of a node. Empty for a tensor that requires no gradient.
struct graph_edge {
  std::shared_ptr<graph_node> to;
  std::uint32_t value = 0;
  explicit operator bool() const noexcept { return to != nullptr; }
};

/// What a tensor of the forward pass looked like; its gradient looks the same.
struct value_facts {
  dims shape;
  ferry::dtype type{};
  device where;
  static value_facts of(const tensor& t) { return {t.shape(), t.dtype(), t.device()}; }
  friend bool operator==(const value_facts&, const value_facts&) = default;
  /// "f32 [2, 3]", with the device unless that is the CPU.
  [[nodiscard]] std::string describe() const;
};

/// What turns the gradients of the values that an operation computed into those of its inputs. Derive from derivative<Op>
/// or function<F> rather than from this.
///
/// Threads: a graph is made by the thread that computes; several threads may go back through a graph at once, if it was
/// kept, each with its own pass.
class graph_node {
 public:
  graph_node(const graph_node&) = delete;
  graph_node& operator=(const graph_node&) = delete;
  /// Releases what is only reachable from it without recursion, however deep the graph.
  virtual ~graph_node();

  /// That of the operation.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// One for each input of the operation, empty where that requires no gradient.
  [[nodiscard]] std::span<const graph_edge> edges() const noexcept { return edges_; }
  /// The results of the operation.
  [[nodiscard]] std::span<const value_facts> values() const noexcept { return values_; }
  /// Counts the nodes of this process: later operations have larger numbers.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// The stream on which the operation ran; its gradients are computed on it, too.
  [[nodiscard]] const stream& on() const noexcept { return on_; }
  /// "mul (node 7, f32 [2, 3])"
  [[nodiscard]] std::string describe() const;

  /// Computes the gradients of the inputs: `results[i]` for edge i; one that is left undefined stands for zero.
  /// `gradients[j]` is that of value j, undefined if none reached it (but not all of them are). Both are the pass's: what is
  /// moved out of `gradients` may be written by its new owner if it is the only handle.
  virtual void apply(std::span<tensor> gradients, std::span<tensor> results) = 0;
  /// Whether there is apply_sparse(), which a pass takes in place of apply() if edge 0 leads to a leaf: the gradient of input 0 as
  /// the rows that it consists of, with one sparse axis. Other inputs have none.
  [[nodiscard]] virtual bool has_sparse() const noexcept { return false; }
  [[nodiscard]] virtual sparse_tensor apply_sparse(std::span<tensor> /*gradients*/) { return {}; }
  /// Drops what apply() needs: the graph is not to be used again.
  virtual void release_saved() noexcept {}

 protected:
  /// On the current stream of the first value's device.
  graph_node(std::vector<graph_edge> edges, std::vector<value_facts> values);

 private:
  friend class detail::backward_pass;
  friend class detail::gradient_hooks;

  std::vector<graph_edge> edges_;
  std::vector<value_facts> values_;
  const std::uint64_t number_;
  stream on_;
  std::shared_ptr<detail::gradient_hooks> hooks_;  // null for most nodes
  // The pass that has numbered the node, and its number there. Passes that come to it meanwhile look their own up in a table.
  std::atomic<const detail::backward_pass*> numbered_by_{nullptr};
  std::uint32_t place_ = 0;
};

}  // namespace ferry::inline v0
