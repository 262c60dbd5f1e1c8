#pragma once

// A pass over nodes of any engines in this process, through the seam alone: what distributed passes do, without the rest.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ferry/autograd/detail/memory.hpp>
#include <ferry/autograd/dist/engine.hpp>
#include <ferry/ops/ops.hpp>

namespace libtorch_test {

struct leaf_sum {
  ferry::engine_leaf leaf;
  ferry::gradient_value sum;
  int times = 0;
};
using leaf_sums = std::map<std::uintptr_t, leaf_sum>;

struct root {
  ferry::node_edge edge;
  ferry::tensor gradient;
};

class seam_pass {
 public:
  explicit seam_pass(bool keeps_graph = false) : keeps_graph_(keeps_graph) {}

  void run(const std::vector<root>& roots, leaf_sums& into) {
    for (const root& each : roots) count(each.edge);
    for (const root& each : roots) give(each.edge, {each.gradient, {}});
    while (!ready_.empty()) {
      const auto next = std::max_element(ready_.begin(), ready_.end(), [](const auto& a, const auto& b) {
        return a.engine().order(a.node()) < b.engine().order(b.node());
      });
      const ferry::node_ref node = *next;
      ready_.erase(next);
      work(node, into);
    }
  }
  [[nodiscard]] std::size_t nodes_run() const noexcept { return run_; }

 private:
  struct state {
    std::size_t awaited = 0;
    std::vector<ferry::gradient_value> gradients;
  };

  void count(const ferry::node_edge& edge) {
    if (!edge) return;
    const auto [at, fresh] = states_.try_emplace(edge.to.node());
    ++at->second.awaited;
    if (!fresh) return;
    at->second.gradients.resize(edge.to.engine().value_count(edge.to.node()));
    std::vector<ferry::node_edge> edges;
    edge.to.engine().edges(edge.to.node(), edges);
    for (const ferry::node_edge& each : edges) count(each);
  }
  void give(const ferry::node_edge& edge, ferry::gradient_value&& gradient) {
    if (!edge) return;
    state& at = states_.at(edge.to.node());
    add(at.gradients.at(edge.value), std::move(gradient));
    if (--at.awaited == 0) ready_.push_back(edge.to);
  }
  static void add(ferry::gradient_value& sum, ferry::gradient_value&& more) {
    if (!more.defined()) return;
    if (!sum.defined()) {
      sum = std::move(more);
    } else if (sum.rows.defined() && more.rows.defined()) {
      sum.rows = ferry::add(sum.rows, more.rows);
    } else {
      const auto dense = [](const ferry::gradient_value& of) {
        return of.rows.defined() ? of.rows.to_dense() : of.dense;
      };
      sum.dense = ferry::add(dense(sum), dense(more));
      sum.rows = {};
    }
  }
  void work(const ferry::node_ref& node, leaf_sums& into) {
    std::vector<ferry::gradient_value> gradients = std::move(states_.at(node.node()).gradients);
    const ferry::detail::engine_interface& engine = node.engine();
    ++run_;
    if (auto leaf = engine.leaf(node.node())) {
      ferry::gradient_value& own = gradients.at(0);
      if (own.rows.defined() && engine.needs_dense(node.node())) own = {own.rows.to_dense(), {}};
      if (!own.rows.defined()) engine.before_accumulation(node.node(), own.dense);
      leaf_sum& sum = into[leaf->identity];
      sum.leaf = std::move(*leaf);
      ++sum.times;
      if (sum.sum.dense.defined() && own.dense.defined()) {
        ferry::add_(sum.sum.dense, own.dense);
      } else if (!sum.sum.defined() && own.dense.defined()) {
        sum.sum.dense = ferry::detail::is_only_owner(own.dense) ? std::move(own.dense) : own.dense.clone();
      } else {
        add(sum.sum, std::move(own));
      }
      engine.after_accumulation(node.node());
      return;
    }
    std::vector<ferry::node_edge> edges;
    engine.edges(node.node(), edges);
    std::vector<ferry::gradient_value> results(edges.size());
    engine.apply(node.node(), gradients, results);
    if (!keeps_graph_) engine.release(node.node());
    gradients.clear();
    for (std::size_t i = 0; i != edges.size(); ++i) give(edges[i], std::move(results[i]));
  }

  bool keeps_graph_;
  std::size_t run_ = 0;
  std::unordered_map<void*, state> states_;
  std::vector<ferry::node_ref> ready_;
};

}  // namespace libtorch_test
