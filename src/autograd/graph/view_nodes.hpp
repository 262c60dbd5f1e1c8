#pragma once

// What writes through views put into the graph.

#include <memory>
#include <string_view>
#include <utility>

#include <ferry/autograd/derivative.hpp>
#include <ferry/autograd/node.hpp>

#include "gradient_record.hpp"

namespace ferry::inline v0::detail {

/// A view, as a part of a base that was written since it was made.
class part_node final : public graph_node {
 public:
  part_node(graph_edge base, value_facts base_facts, view_place base_place, value_facts facts, view_place place)
      : graph_node({std::move(base)}, {std::move(facts)}),
        base_(std::move(base_facts)),
        base_place_(std::move(base_place)),
        place_(std::move(place)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "part"; }
  void apply(std::span<tensor> gradients, std::span<tensor> results) override;

 private:
  const value_facts base_;
  const view_place base_place_;
  const view_place place_;
};

/// A base, a part of which an operation in place has written.
class written_part_node final : public graph_node {
 public:
  written_part_node(graph_edge base, value_facts facts, view_place base_place, view_place place,
                    std::shared_ptr<operation_node> written);
  [[nodiscard]] std::string_view name() const noexcept override { return written_->name(); }
  void apply(std::span<tensor> gradients, std::span<tensor> results) override;
  void release_saved() noexcept override { written_->release_saved(); }

 private:
  const view_place base_place_;
  const view_place place_;
  const std::shared_ptr<operation_node> written_;  // its edges are never followed
};

}  // namespace ferry::inline v0::detail
