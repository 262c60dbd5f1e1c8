#include "view_nodes.hpp"

#include <algorithm>
#include <array>

#include <ferry/tensor/factories.hpp>

namespace ferry::inline v0::detail {
namespace {

// The part of a tensor laid out as the base was.
tensor part_of_gradient(const tensor& whole, const view_place& base, const view_place& part) {
  return whole.as_strided(part.shape, part.strides, part.offset - base.offset);
}

tensor like_base(const value_facts& facts, const view_place& place) {
  tensor whole = empty_strided(place.shape, place.strides, facts.type, facts.where);
  whole.fill_(0);
  return whole;
}

// The edges of a written part: first the base, then the operation's inputs but its target.
std::vector<graph_edge> edges_of_written(graph_edge base, const operation_node& written) {
  std::vector<graph_edge> edges{std::move(base)};
  edges.insert(edges.end(), written.edges().begin() + 1, written.edges().end());
  return edges;
}

}  // namespace

void part_node::apply(std::span<tensor> gradients, std::span<tensor> results) {
  tensor whole = like_base(base_, base_place_);
  add_to_part(part_of_gradient(whole, base_place_, place_), gradients[0]);
  results[0] = std::move(whole);
}

written_part_node::written_part_node(graph_edge base, value_facts facts, view_place base_place, view_place place,
                                     std::shared_ptr<operation_node> written)
    : graph_node(edges_of_written(std::move(base), *written), {std::move(facts)}),
      base_place_(std::move(base_place)),
      place_(std::move(place)),
      written_(std::move(written)) {}

void written_part_node::apply(std::span<tensor> gradients, std::span<tensor> results) {
  tensor whole = like_base(values()[0], base_place_);
  whole.copy_(gradients[0]);
  const tensor part = part_of_gradient(whole, base_place_, place_);
  std::array<tensor, 1> of_part{part.clone()};
  written_->apply(of_part, results);
  if (results[0].defined()) {
    part.copy_(results[0]);
  } else {
    part.fill_(0);
  }
  results[0] = std::move(whole);
}

}  // namespace ferry::inline v0::detail
