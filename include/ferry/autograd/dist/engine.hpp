#pragma once

// The seam between distributed passes and what computes gradients on one worker. ferry's own graph is one engine; the adapter
// for libtorch is another one. Distributed passes know nodes, edges and leaves; an engine says what these are.
//
//   struct my_engine {};
//   template <> struct ferry::autograd_traits<my_engine> {
//     static constexpr std::string_view name = "my_engine";
//     using node_type = my_node;                                              // what its edges lead to
//     static std::size_t value_count(const my_node&);                         // how many gradients apply() takes
//     static void edges(const my_node&, std::vector<ferry::node_edge>& to);   // appends one for each that apply() returns
//     static void apply(my_node&, std::span<ferry::gradient_value> gradients, std::span<ferry::gradient_value> results);
//     static void release(my_node&);                                          // drops what apply() needs
//     static std::uint64_t order(const my_node&);                             // later operations have larger numbers
//     static ferry::stream on(const my_node&);                                // where its gradients are computed
//     static std::string describe(const my_node&);                            // for error texts
//     static std::optional<ferry::engine_leaf> leaf(const my_node&);          // what it accumulates for, if it does
//     static bool needs_dense(const my_node& leaf);                           // a hook will see the gradient of the leaf
//     static void before_accumulation(my_node& leaf, ferry::tensor& gradient);  // hooks, which may replace it
//     static void after_accumulation(my_node& leaf);                          // hooks
//   };

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/autograd/gradient.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

class node_ref;
struct node_edge;

/// The gradient of one value: a tensor, or, for a leaf, rows of it. Neither: zero.
struct gradient_value {
  tensor dense = {};
  sparse_tensor rows = {};
  [[nodiscard]] bool defined() const noexcept { return dense.defined() || rows.defined(); }
};

/// A leaf, as its gradient is filed.
struct engine_leaf {
  std::uintptr_t identity = 0;  ///< unique in the process while the leaf lives
  tensor value = {};            ///< over the elements of the leaf: the same tensor for ferry's own
};

/// Customisation point: what an engine says of its nodes. apply() computes the gradients of a node's inputs from those of its
/// values (undefined: none arrived; perhaps all), outside of the graph, on the current streams, which are those of on(); it calls the
/// hooks on these gradients first. What it moves out of `gradients` may be written if that is the only handle. It is called
/// once for each pass, never concurrently for one pass, perhaps concurrently for different passes. It may throw anything: that
/// ends the pass. A hook on a tensor sees its whole gradient, once for each pass. It leaves the node usable: unless the graph is kept,
/// release() follows, but never while another pass of the worker may be in apply() of the node, or if the pass is over: the graph
/// stays then, as if it was kept.
template <class Engine>
struct autograd_traits;

namespace detail {

/// An engine without its type.
class engine_interface {
 public:
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual std::size_t value_count(const void* node) const = 0;
  virtual void edges(const void* node, std::vector<node_edge>& to) const = 0;
  virtual void apply(void* node, std::span<gradient_value> gradients, std::span<gradient_value> results) const = 0;
  virtual void release(void* node) const = 0;
  [[nodiscard]] virtual std::uint64_t order(const void* node) const = 0;
  [[nodiscard]] virtual stream on(const void* node) const = 0;
  [[nodiscard]] virtual std::string describe(const void* node) const = 0;
  [[nodiscard]] virtual std::optional<engine_leaf> leaf(const void* node) const = 0;
  [[nodiscard]] virtual bool needs_dense(const void* leaf) const = 0;
  virtual void before_accumulation(void* leaf, tensor& gradient) const = 0;
  virtual void after_accumulation(void* leaf) const = 0;

 protected:
  ~engine_interface() = default;
};

}  // namespace detail

template <class Engine>
concept autograd_engine = requires(typename autograd_traits<Engine>::node_type& node, std::vector<node_edge>& edges,
                                   std::span<gradient_value> gradients, tensor& gradient) {
  { autograd_traits<Engine>::name } -> std::convertible_to<std::string_view>;
  { autograd_traits<Engine>::value_count(node) } -> std::convertible_to<std::size_t>;
  autograd_traits<Engine>::edges(node, edges);
  autograd_traits<Engine>::apply(node, gradients, gradients);
  autograd_traits<Engine>::release(node);
  { autograd_traits<Engine>::order(node) } -> std::convertible_to<std::uint64_t>;
  { autograd_traits<Engine>::on(node) } -> std::same_as<stream>;
  { autograd_traits<Engine>::describe(node) } -> std::convertible_to<std::string>;
  { autograd_traits<Engine>::leaf(node) } -> std::same_as<std::optional<engine_leaf>>;
  { autograd_traits<Engine>::needs_dense(node) } -> std::convertible_to<bool>;
  autograd_traits<Engine>::before_accumulation(node, gradient);
  autograd_traits<Engine>::after_accumulation(node);
};

namespace detail {

template <class Engine>
class engine_of final : public engine_interface {
  static_assert(
      autograd_engine<Engine>,
      "ferry: this type is no engine of gradients: specialise ferry::autograd_traits for it with name, node_type, "
      "value_count, edges, apply, release, order, on, describe, leaf, needs_dense, before_accumulation and "
      "after_accumulation; see <ferry/autograd/dist/engine.hpp>");
  using traits = autograd_traits<Engine>;
  using node = typename traits::node_type;
  static node& as(void* n) { return *static_cast<node*>(n); }
  static const node& as(const void* n) { return *static_cast<const node*>(n); }

 public:
  [[nodiscard]] std::string_view name() const noexcept override { return traits::name; }
  [[nodiscard]] std::size_t value_count(const void* n) const override { return traits::value_count(as(n)); }
  void edges(const void* n, std::vector<node_edge>& to) const override { traits::edges(as(n), to); }
  void apply(void* n, std::span<gradient_value> gradients, std::span<gradient_value> results) const override {
    traits::apply(as(n), gradients, results);
  }
  void release(void* n) const override { traits::release(as(n)); }
  [[nodiscard]] std::uint64_t order(const void* n) const override { return traits::order(as(n)); }
  [[nodiscard]] stream on(const void* n) const override { return traits::on(as(n)); }
  [[nodiscard]] std::string describe(const void* n) const override { return traits::describe(as(n)); }
  [[nodiscard]] std::optional<engine_leaf> leaf(const void* n) const override { return traits::leaf(as(n)); }
  [[nodiscard]] bool needs_dense(const void* n) const override { return traits::needs_dense(as(n)); }
  void before_accumulation(void* n, tensor& gradient) const override { traits::before_accumulation(as(n), gradient); }
  void after_accumulation(void* n) const override { traits::after_accumulation(as(n)); }
};

template <class Engine>
inline constexpr engine_of<Engine> engine_instance{};

}  // namespace detail

/// A node of some engine. Does not own it: what leads to a node keeps it.
class node_ref {
 public:
  node_ref() noexcept = default;
  template <class Engine>
  [[nodiscard]] static node_ref of(typename autograd_traits<Engine>::node_type& node) noexcept {
    return {&detail::engine_instance<Engine>, &node};
  }
  explicit operator bool() const noexcept { return node_ != nullptr; }
  /// Null unless it is a node of that engine.
  template <class Engine>
  [[nodiscard]] typename autograd_traits<Engine>::node_type* as() const noexcept {
    return engine_ == &detail::engine_instance<Engine>
               ? static_cast<typename autograd_traits<Engine>::node_type*>(node_)
               : nullptr;
  }
  friend bool operator==(const node_ref&, const node_ref&) noexcept = default;

  // For the library.
  [[nodiscard]] const detail::engine_interface& engine() const noexcept { return *engine_; }
  [[nodiscard]] void* node() const noexcept { return node_; }

 private:
  node_ref(const detail::engine_interface* engine, void* node) noexcept : engine_(engine), node_(node) {}
  const detail::engine_interface* engine_ = nullptr;
  void* node_ = nullptr;
};

/// Where a gradient goes: value `value` of a node, which may be of another engine than what leads there. Empty: nowhere.
struct node_edge {
  node_ref to = {};
  std::uint32_t value = 0;
  explicit operator bool() const noexcept { return static_cast<bool>(to); }
};

/// An edge that keeps the node to which it leads.
struct held_edge {
  node_edge edge = {};
  std::shared_ptr<void> keeps = {};
  explicit operator bool() const noexcept { return static_cast<bool>(edge); }
};

/// ferry's own graph (<ferry/autograd/node.hpp>).
struct graph_engine {};
template <>
struct autograd_traits<graph_engine> {
  static constexpr std::string_view name = "ferry";
  using node_type = graph_node;
  static std::size_t value_count(const graph_node& node);
  static void edges(const graph_node& node, std::vector<node_edge>& to);
  static void apply(graph_node& node, std::span<gradient_value> gradients, std::span<gradient_value> results);
  static void release(graph_node& node);
  static std::uint64_t order(const graph_node& node);
  static stream on(const graph_node& node);
  static std::string describe(const graph_node& node);
  static std::optional<engine_leaf> leaf(const graph_node& node);
  static bool needs_dense(const graph_node& leaf);
  static void before_accumulation(graph_node& leaf, tensor& gradient);
  static void after_accumulation(graph_node& leaf);
};

// How tensors of another engine go with calls: tensor_traits of its type makes a ferry::tensor over the same elements, and

/// lets the gradient of `t`, a new handle that requires none yet, go to `edge`. The library then sends and receives
/// gradients for it as for its own. Distributed passes alone follow the edge; backward() on one worker refuses it. Throws
/// errc::bad_dtype unless the elements are f32 or f64.
void lead_gradient_to(const tensor& t, held_edge edge);
/// The other way round: where the gradient of `t`, an argument or result that has arrived (or any other), goes. Empty if it
/// requires none.
[[nodiscard]] held_edge gradient_edge_of(const tensor& t);

}  // namespace ferry::inline v0
