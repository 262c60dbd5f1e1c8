#pragma once

// What the slot of a tensor keeps of its gradient.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <ferry/autograd/derivative.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/autograd/node.hpp>
#include <ferry/tensor/hooks.hpp>

#include "kept_gradient.hpp"

namespace ferry::inline v0::detail {

/// The hooks of a leaf, or of the values of a node.
class gradient_hooks : public std::enable_shared_from_this<gradient_hooks> {
 public:
  /// Those of a node's values; null: none.
  static const gradient_hooks* existing(const graph_node& values) noexcept { return values.hooks_.get(); }
  static gradient_hooks& of(graph_node& values) {
    if (!values.hooks_) values.hooks_ = std::make_shared<gradient_hooks>();
    return *values.hooks_;
  }
  /// `retains`: it keeps the gradient, and is not called by passes that only find gradients.
  gradient_hook add(std::uint32_t value, std::function<tensor(const tensor&)> hook, bool retains = false);
  void remove(std::uint64_t number) noexcept;
  /// Lets the hooks of a value see, and replace, its gradient.
  void call(const graph_node& of, std::uint32_t value, tensor& gradient, bool only_finds) const;
  [[nodiscard]] bool has_any_of(std::uint32_t value) const;

 private:
  struct entry {
    std::uint64_t number;
    std::uint32_t value;
    bool retains;
    std::function<tensor(const tensor&)> hook;
  };
  [[nodiscard]] std::vector<entry> entries() const;
  [[nodiscard]] bool has(std::uint64_t number) const;

  mutable std::mutex mutex_;  // guards the next two
  std::uint64_t next_ = 1;
  std::vector<entry> entries_;
};

/// Adds to the gradient of a leaf: the end of a path through the graph.
class accumulator;

/// The place of a view in the tensor that it is a part of.
struct view_place {
  dims shape;
  dims strides;
  std::int64_t offset = 0;
};

/// The hooks of a tensor that requires a gradient, or may come to. A leaf, or the value of a node; a view of a value follows
/// what is written to that.
///
/// Threads: as for the slot of a tensor. What several threads may do to one leaf (use it in operations, add to its gradient)
/// is guarded.
class gradient_record final : public tensor_hooks, public std::enable_shared_from_this<gradient_record> {
 public:
  static std::shared_ptr<gradient_record> of(const tensor& t) noexcept;
  /// The same, made if there is none. Throws errc::invalid_argument if another library has the slot.
  static std::shared_ptr<gradient_record> of_or_new(const tensor& t);
  /// The tensor becomes a value of a node.
  static void set_history(const tensor& t, graph_edge from);

  [[nodiscard]] bool required() const noexcept { return leaf_required_ || is_value_; }
  [[nodiscard]] bool is_leaf() const noexcept { return !is_value_; }
  void require(bool now) noexcept { leaf_required_ = now; }
  /// Of `t`, which has this record. Empty if it requires no gradient.
  graph_edge edge_of(const tensor& t);

  /// Of a leaf, or of a value that retains it.
  [[nodiscard]] kept_gradient& kept() noexcept { return kept_; }
  [[nodiscard]] const kept_gradient& kept() const noexcept { return kept_; }
  void retain();
  gradient_hook add_hook(std::function<tensor(const tensor&)> hook);
  gradient_hook add_accumulated_hook(std::function<void(const tensor&)> hook);
  /// Of a leaf: called in the catch block of a pass on one worker that leads to it and fails.
  gradient_hook add_failure_hook(std::function<void()> hook);
  /// Of a leaf: value 0 is its gradient, value 1 the leaf itself, once that was added, value 2 as well, where a pass fails. Null: none.
  [[nodiscard]] std::shared_ptr<gradient_hooks> leaf_hooks() const;

  void viewed(const operation& what, const tensor& base, tensor& view) override;
  void mutated(const operation& what, const tensor& target, std::span<const tensor> inputs) override;
  void computed(const operation& what, std::span<const tensor> inputs, std::span<tensor> outputs) override;
  [[nodiscard]] bool requires_grad(const tensor& target) const noexcept override;

 private:
  // What a view knows of the tensor that it is a part of.
  struct part {
    std::shared_ptr<gradient_record> base;
    value_facts base_facts;
    view_place base_place;
    view_place place;
    graph_edge leaf;             // of the base, if that is a leaf
    std::uint64_t followed = 0;  // what rewritten_ of the base was when the history was made
  };

  void set_history(graph_edge from);
  graph_edge history();
  void write_through(const std::shared_ptr<operation_node>& written);
  void keep_retaining();
  gradient_hooks& own_hooks();

  bool leaf_required_ = false;
  bool is_value_ = false;        // it has a history
  bool outside_ = false;         // a view of a value or leaf that was made within no_grad
  std::uint64_t rewritten_ = 0;  // how often its history was replaced by writes, through it or through views of it
  std::unique_ptr<part> part_;   // null: not a view
  bool retained_ = false;
  gradient_hook retaining_;
  mutable std::mutex mutex_;  // guards the next ones, and `followed` of part_
  graph_edge history_;        // of a value; history() brings that of a view up to date
  std::weak_ptr<accumulator> leaf_;
  std::shared_ptr<gradient_hooks> leaf_hooks_;
  kept_gradient kept_;
};

}  // namespace ferry::inline v0::detail
