#include "backward_pass.hpp"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ferry/autograd/detail/memory.hpp>
#include <ferry/base/error.hpp>
#include <ferry/device/current.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/factories.hpp>

#include "../graph/accumulator.hpp"
#include "../graph/facts_difference.hpp"
#include "../graph/gradient_record.hpp"

namespace ferry::inline v0::detail {
namespace {

// Errors of ferry name the node that they happened in.
template <class F>
void within(const graph_node& what, F&& run) {
  try {
    run();
  } catch (const error& e) {
    throw_error(e.kind(), fmt::format("backward of {}: {}", what.describe(), e.message()));
  }
}

thread_local constinit const backward_pass* running_backward_of_thread = nullptr;

void check_result(const tensor& gradient, const value_facts& facts, std::size_t input) {
  const value_facts returned = value_facts::of(gradient);
  if (returned == facts) return;
  throw_error(difference_of(returned, facts),
              fmt::format("its formula returned {} as the gradient of input {}, which is {}", returned.describe(),
                          input, facts.describe()));
}

void check_rows(const sparse_tensor& rows, const value_facts& facts) {
  const value_facts whole{rows.shape(), rows.dtype(), rows.device()};
  if (whole == facts && rows.sparse_axes() == 1) return;
  throw_error(errc::bad_shape,
              fmt::format("its formula returned {} with {} sparse axes as the gradient of a leaf, which "
                          "is {}: a sparse gradient has one",
                          whole.describe(), rows.sparse_axes(), facts.describe()));
}

}  // namespace

backward_pass::~backward_pass() {
  for (const entry& each : nodes_) {
    if (each.what->numbered_by_.load(std::memory_order_relaxed) == this)
      each.what->numbered_by_.store(nullptr, std::memory_order_release);
  }
}

std::uint32_t backward_pass::number_of(graph_node& what) {
  if (what.numbered_by_.load(std::memory_order_acquire) == this) return what.place_;
  if (const auto found = elsewhere_.find(&what); found != elsewhere_.end()) return found->second;
  // The entry comes first: the destructor takes the number off the nodes that have one.
  const auto number = static_cast<std::uint32_t>(nodes_.size());
  nodes_.push_back({.what = &what, .first = static_cast<std::uint32_t>(gradients_.size())});
  gradients_.resize(gradients_.size() + what.values().size());
  const backward_pass* none = nullptr;
  if (what.numbered_by_.compare_exchange_strong(none, this, std::memory_order_acq_rel)) {
    what.place_ = number;
  } else {
    elsewhere_[&what] = number;
  }
  return number;
}

std::uint32_t backward_pass::known_number(const graph_node& what) const noexcept {
  return what.numbered_by_.load(std::memory_order_relaxed) == this ? what.place_ : elsewhere_.find(&what)->second;
}

void backward_pass::add_root(graph_edge root, tensor gradient) {
  roots_.push_back(std::move(root));
  root_gradients_.push_back(std::move(gradient));
}

std::size_t backward_pass::add_target(const graph_edge& target) {
  targets_.push_back({target, {}});
  return targets_.size() - 1;
}

// Counts the gradients that will arrive at each node: one for each edge and root.
void backward_pass::discover() {
  for (const graph_edge& root : roots_) ++nodes_[number_of(*root.to)].missing;
  for (std::size_t next = 0; next != nodes_.size(); ++next) {  // number_of() adds to nodes_
    const std::span<const graph_edge> edges = nodes_[next].what->edges();
    for (const graph_edge& each : edges) {
      if (each) ++nodes_[number_of(*each.to)].missing;
    }
  }
}

// Which nodes lead to a target, from the targets upwards: in the reverse of an order in which each comes after those that
// lead to it.
void backward_pass::find_wanted() {
  for (entry& each : nodes_) each.wanted = each.runs = false;
  for (const target& each : targets_) {
    const graph_node& at = *each.at.to;
    if (at.numbered_by_.load(std::memory_order_relaxed) == this || elsewhere_.contains(&at))
      nodes_[known_number(at)].wanted = true;
  }
  std::vector<std::uint32_t> missing;
  std::vector<std::uint32_t> order;
  missing.reserve(nodes_.size());
  order.reserve(nodes_.size());
  for (const entry& each : nodes_) missing.push_back(each.missing);
  for (const graph_edge& root : roots_) {
    if (const std::uint32_t number = known_number(*root.to); --missing[number] == 0) order.push_back(number);
  }
  for (std::size_t next = 0; next != order.size(); ++next) {
    for (const graph_edge& each : nodes_[order[next]].what->edges()) {
      if (!each) continue;
      if (const std::uint32_t number = known_number(*each.to); --missing[number] == 0) order.push_back(number);
    }
  }
  for (auto number = order.rbegin(); number != order.rend(); ++number) {
    entry& one = nodes_[*number];
    for (const graph_edge& each : one.what->edges()) {
      if (each && nodes_[known_number(*each.to)].wanted) one.runs = true;
    }
    one.wanted = one.wanted || one.runs;
  }
}

std::uint64_t backward_pass::running_here() noexcept {
  static std::atomic<std::uint64_t> last{0};
  const backward_pass* const pass = running_backward_of_thread;
  if (!pass) return 0;
  if (pass->unique_ == 0) pass->unique_ = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return pass->unique_;
}

void backward_pass::run() {
  struct scope {
    const backward_pass* const former;
    ~scope() { running_backward_of_thread = former; }
  };
  const scope here{running_backward_of_thread};
  if (!here.former) running_backward_of_thread = this;  // a pass that a node runs is a part of that pass
  try {
    run_nodes();
  } catch (...) {
    if (targets_.empty()) tell_leaves();
    throw;
  }
}

void backward_pass::tell_leaves() const noexcept {
  for (const entry& each : nodes_) {
    if (!each.what->edges().empty()) continue;
    if (const auto* leaf = dynamic_cast<const accumulator*>(each.what)) leaf->call_failed();
  }
}

void backward_pass::run_nodes() {
  discover();
  if (!targets_.empty()) find_wanted();
  for (std::size_t i = 0; i != roots_.size(); ++i) {
    const std::uint32_t number = known_number(*roots_[i].to);
    const device where = root_gradients_[i].device();
    arrive(number, roots_[i].value, std::move(root_gradients_[i]), where.is_cpu() ? stream() : current_stream(where));
    one_arrived(number);
  }
  while (!ready_.empty()) {
    const std::uint32_t number = ready_.back();
    ready_.pop_back();
    run_node(number);
  }
  for (const stream& each : streams_) current_stream(each.device()).wait(each);
  for (const target& each : targets_) {
    if (each.found.defined() && !each.found.device().is_cpu())
      each.found.storage().record_use(current_stream(each.found.device()));
  }
}

void backward_pass::call_hooks(graph_node& what, std::span<tensor> gradients) {
  if (what.edges().empty()) {
    if (const auto* leaf = dynamic_cast<const accumulator*>(&what)) leaf->call_hooks(gradients[0], !targets_.empty());
  }
  if (!what.hooks_) return;
  for (std::uint32_t value = 0; value != gradients.size(); ++value) {
    if (gradients[value].defined()) what.hooks_->call(what, value, gradients[value], !targets_.empty());
  }
}

void backward_pass::run_node(std::uint32_t number) {
  graph_node& what = *nodes_[number].what;
  const std::span<const graph_edge> edges = what.edges();
  const std::span<tensor> gradients(gradients_.data() + nodes_[number].first, what.values().size());
  std::vector<sparse_tensor> rows;
  if (!rows_.empty()) {
    if (const auto found = rows_.find(number); found != rows_.end()) rows = std::move(found->second);
  }
  const bool arrived =
      nodes_[number].wanted && (!rows.empty() || std::any_of(gradients.begin(), gradients.end(),
                                                             [](const tensor& each) { return each.defined(); }));
  sparse_tensor rows_of_leaf;
  results_.assign(edges.size(), tensor());
  if (arrived) {
    std::optional<stream_guard> on;
    if (!what.on().device().is_cpu()) {
      on.emplace(what.on());
      if (std::find(streams_.begin(), streams_.end(), what.on()) == streams_.end()) streams_.push_back(what.on());
    }
    within(what, [&] {
      if (!rows.empty()) return run_leaf(dynamic_cast<accumulator&>(what), gradients, std::move(rows));
      call_hooks(what, gradients);
      for (target& each : targets_) {
        if (each.at.to.get() == &what) each.found = gradients[each.at.value];
      }
      if (!nodes_[number].runs) return;
      if (gives_rows(what)) {
        rows_of_leaf = what.apply_sparse(gradients);
        if (rows_of_leaf.defined()) check_rows(rows_of_leaf, edges[0].to->values()[0]);
      } else {
        what.apply(gradients, results_);
      }
      if (!keeps_graph_) what.release_saved();
      for (std::size_t i = 0; i != edges.size(); ++i) {
        if (edges[i] && results_[i].defined()) check_result(results_[i], edges[i].to->values()[edges[i].value], i);
      }
    });
  }
  for (tensor& each : gradients) each = {};
  // On another device than the node's (the operation was a copy between devices), on the thread's own stream there.
  const auto made_on = [&](const tensor& t) {
    return t.device().is_cpu() || t.device() == what.on().device() ? what.on() : current_stream(t.device());
  };
  for (std::size_t i = 0; i != edges.size(); ++i) {
    if (!edges[i]) continue;
    const std::uint32_t next = known_number(*edges[i].to);
    if (i == 0 && rows_of_leaf.defined()) {
      const stream from = made_on(rows_of_leaf.values());
      arrive_rows(next, std::move(rows_of_leaf), from);
    }
    if (results_[i].defined() && nodes_[next].wanted) {
      const stream from = made_on(results_[i]);
      arrive(next, edges[i].value, std::move(results_[i]), from);
    }
    one_arrived(next);
  }
}

// Passes that only find gradients find dense ones.
bool backward_pass::gives_rows(const graph_node& what) const noexcept {
  return targets_.empty() && what.has_sparse() && what.edges()[0] &&
         dynamic_cast<const accumulator*>(what.edges()[0].to.get()) != nullptr;
}

void backward_pass::run_leaf(accumulator& leaf, std::span<tensor> gradients, std::vector<sparse_tensor>&& rows) {
  if (!gradients[0].defined() && !leaf.has_hooks()) return leaf.apply_rows(std::move(rows));
  tensor& whole = gradients[0];
  if (!whole.defined()) {
    const value_facts& facts = leaf.values()[0];
    whole = zeros(facts.shape, facts.type, facts.where);
  } else if (!is_only_owner(whole)) {
    whole = whole.clone();
  }
  for (const sparse_tensor& each : rows) add_(whole, each);
  leaf.call_hooks(whole, false);
  leaf.apply(gradients, {});
}

void backward_pass::wait_for(const tensor& gradient, const stream& from, const stream& to) {
  if (gradient.device().is_cpu() || gradient.device() != to.device() || from == to) return;
  to.wait(from);
  gradient.storage().record_use(to);
}

void backward_pass::arrive_rows(std::uint32_t number, sparse_tensor&& rows, const stream& from) {
  const stream& to = nodes_[number].what->on();
  wait_for(rows.indices(), from, to);
  wait_for(rows.values(), from, to);
  rows_[number].push_back(std::move(rows));
}

// `gradient` is valid on `from`, and is used on the stream of the node.
void backward_pass::arrive(std::uint32_t number, std::uint32_t value, tensor&& gradient, const stream& from) {
  const stream& to = nodes_[number].what->on();
  tensor& place = gradients_[nodes_[number].first + value];
  const bool on_device = !gradient.device().is_cpu();
  wait_for(gradient, from, to);
  if (!place.defined()) {
    place = std::move(gradient);
    return;
  }
  std::optional<stream_guard> on;
  if (on_device) on.emplace(to);
  if (is_only_owner(place)) {
    add_(place, gradient);
  } else {
    place = add(place, gradient);
  }
}

}  // namespace ferry::inline v0::detail
