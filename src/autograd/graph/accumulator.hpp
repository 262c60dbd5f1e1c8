#pragma once

#include "gradient_record.hpp"

namespace ferry::inline v0::detail {

/// The node of a leaf: adds to its gradient. Keeps the leaf.
class accumulator final : public graph_node {
 public:
  accumulator(const tensor& leaf, std::shared_ptr<gradient_record> record)
      : graph_node({}, {value_facts::of(leaf)}), leaf_(leaf), record_(std::move(record)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "accumulate"; }
  void apply(std::span<tensor> gradients, std::span<tensor> results) override;
  [[nodiscard]] const tensor& leaf() const noexcept { return leaf_; }
  /// Lets the leaf's hooks see, and replace, its gradient.
  void call_hooks(tensor& gradient, bool only_finds) const;
  /// Whether the leaf still requires a gradient: it may have been frozen since it was used.
  [[nodiscard]] bool required() const noexcept;
  /// Whether there are such hooks: they see a dense gradient.
  [[nodiscard]] bool has_hooks() const;
  /// As apply(), with a gradient of which only rows have arrived.
  void apply_rows(std::vector<sparse_tensor>&& rows) const;
  /// Lets the leaf's hooks hear that its gradient was added.
  void call_accumulated() const;
  /// Lets them hear, in a catch block, that a pass which leads here has failed.
  void call_failed() const noexcept;

 private:
  const tensor leaf_;
  const std::shared_ptr<gradient_record> record_;
};

}  // namespace ferry::inline v0::detail
