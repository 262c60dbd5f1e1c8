// ferry's own graph as an engine of distributed passes.

#include <typeinfo>

#include <fmt/format.h>

#include <ferry/autograd/dist/engine.hpp>
#include <ferry/base/error.hpp>

#include "../graph/accumulator.hpp"
#include "../graph/facts_difference.hpp"
#include "../graph/gradient_record.hpp"
#include "dist_pass.hpp"
#include "wire_nodes.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

const accumulator* as_accumulator(const graph_node& node) noexcept {
  return typeid(node) == typeid(accumulator) ? static_cast<const accumulator*>(&node) : nullptr;
}

void check_formula(const value_facts& returned, const value_facts& wanted, std::size_t input) {
  if (returned == wanted) return;
  throw_error(difference_of(returned, wanted),
              fmt::format("its formula returned {} as the gradient of input {}, which is {}", returned.describe(),
                          input, wanted.describe()));
}

const value_facts& edge_facts(const graph_edge& edge) { return edge.to->values()[edge.value]; }

}  // namespace
}  // namespace detail

std::size_t autograd_traits<graph_engine>::value_count(const graph_node& node) { return node.values().size(); }

void autograd_traits<graph_engine>::edges(const graph_node& node, std::vector<node_edge>& to) {
  if (typeid(node) == typeid(detail::leading_node)) {
    to.push_back(static_cast<const detail::leading_node&>(node).to().edge);
    return;
  }
  for (const graph_edge& each : node.edges())
    to.push_back(each ? node_edge{node_ref::of<graph_engine>(*each.to), each.value} : node_edge{});
}

void autograd_traits<graph_engine>::apply(graph_node& node, std::span<gradient_value> gradients,
                                          std::span<gradient_value> results) {
  std::vector<tensor> dense;
  dense.reserve(gradients.size());
  for (gradient_value& each : gradients) dense.push_back(std::move(each.dense));
  if (const detail::gradient_hooks* hooks = detail::gradient_hooks::existing(node)) {
    // A pass that only finds gradients adds to none, retained ones neither.
    const detail::dist_pass* const pass = detail::dist_pass::running_here();
    const bool only_finds = pass && !pass->accumulates();
    for (std::uint32_t value = 0; value != dense.size(); ++value) {
      if (dense[value].defined()) hooks->call(node, value, dense[value], only_finds);
    }
  }
  if (typeid(node) == typeid(detail::leading_node)) {
    results[0].dense = std::move(dense[0]);
    return;
  }
  const std::span<const graph_edge> edges = node.edges();
  const bool of_rows = node.has_sparse() && edges[0] && detail::as_accumulator(*edges[0].to);
  if (of_rows) {
    results[0].rows = node.apply_sparse(dense);
    if (results[0].rows.defined()) {
      const sparse_tensor& rows = results[0].rows;
      detail::check_formula({rows.shape(), rows.dtype(), rows.device()}, detail::edge_facts(edges[0]), 0);
    }
  } else {
    std::vector<tensor> found(edges.size());
    node.apply(dense, found);
    for (std::size_t i = 0; i != edges.size(); ++i) {
      if (!edges[i] || !found[i].defined()) continue;
      detail::check_formula(value_facts::of(found[i]), detail::edge_facts(edges[i]), i);
      results[i].dense = std::move(found[i]);
    }
  }
}

void autograd_traits<graph_engine>::release(graph_node& node) { node.release_saved(); }

std::uint64_t autograd_traits<graph_engine>::order(const graph_node& node) { return node.number(); }
stream autograd_traits<graph_engine>::on(const graph_node& node) { return node.on(); }
std::string autograd_traits<graph_engine>::describe(const graph_node& node) { return node.describe(); }

std::optional<engine_leaf> autograd_traits<graph_engine>::leaf(const graph_node& node) {
  const detail::accumulator* own = detail::as_accumulator(node);
  if (!own) return std::nullopt;
  return engine_leaf{own->leaf().id(), own->leaf()};
}

bool autograd_traits<graph_engine>::needs_dense(const graph_node& leaf) {
  return detail::as_accumulator(leaf)->has_hooks();
}
void autograd_traits<graph_engine>::before_accumulation(graph_node& leaf, tensor& gradient) {
  detail::as_accumulator(leaf)->call_hooks(gradient, false);
}
void autograd_traits<graph_engine>::after_accumulation(graph_node& leaf) {
  detail::as_accumulator(leaf)->call_accumulated();
}

}  // namespace ferry::inline v0
