#include "wire_nodes.hpp"

#include <typeinfo>
#include <unordered_set>

#include <fmt/format.h>

#include <ferry/autograd/detail/memory.hpp>
#include <ferry/autograd/dist/context.hpp>
#include <ferry/base/error.hpp>

#include "../graph/gradient_record.hpp"

namespace ferry::inline v0 {
namespace detail {

received_node::received_node(origin from, std::vector<value_facts> values)
    : graph_node({}, std::move(values)), from_(std::move(from)) {}

void received_node::apply(std::span<tensor>, std::span<tensor>) {
  throw_error(errc::invalid_argument,
              fmt::format("the tensor came from {} in context {}: a pass on one worker ends here; "
                          "ferry::dist_autograd::backward goes on there",
                          to_string(from_.sender), to_string(dist_autograd::context_id{from_.context})));
}

leading_node::leading_node(held_edge to, value_facts value) : graph_node({}, {std::move(value)}), to_(std::move(to)) {}

void leading_node::apply(std::span<tensor>, std::span<tensor>) {
  throw_error(errc::invalid_argument,
              fmt::format("the tensor was made from one of '{}': only ferry::dist_autograd::backward follows it there",
                          to_.edge.to.engine().name()));
}

const received_node* as_received(const node_ref& node) noexcept {
  const graph_node* own = node.as<graph_engine>();
  if (!own) return nullptr;
  const graph_node& any = *own;
  return typeid(any) == typeid(received_node) ? static_cast<const received_node*>(own) : nullptr;
}

message_set messages_before(std::span<const held_edge> places, std::uint64_t context, std::uint64_t first_received) {
  message_set found;
  std::unordered_set<const void*> seen;
  std::vector<node_ref> open;
  const auto visit = [&](const node_edge& each) {
    if (!each) return;
    // What is older than the oldest that was received cannot have been computed from it.
    if (const graph_node* own = each.to.as<graph_engine>(); own && own->number() < first_received) return;
    if (seen.insert(each.to.node()).second) open.push_back(each.to);
  };
  for (const held_edge& each : places) visit(each.edge);
  std::vector<node_edge> edges;
  while (!open.empty()) {
    const node_ref next = open.back();
    open.pop_back();
    if (const received_node* received = as_received(next)) {
      if (received->from().context != context) continue;
      found.insert(received->from().message);
      found.merge(received->from().upstream);
      continue;
    }
    edges.clear();
    next.engine().edges(next.node(), edges);
    for (const node_edge& each : edges) visit(each);
  }
  return found;
}

}  // namespace detail

void lead_gradient_to(const tensor& t, held_edge edge) {
  if (!edge) throw_error(errc::invalid_argument, "a gradient is to be led to no node");
  if (!detail::has_gradients(t.dtype())) {
    throw_error(errc::bad_dtype, fmt::format("only tensors of f32 and f64 have gradients that go with calls, not of {}",
                                             dtype_name(t.dtype())));
  }
  detail::gradient_record::set_history(
      t, {std::make_shared<detail::leading_node>(std::move(edge), value_facts::of(t)), 0});
}

held_edge gradient_edge_of(const tensor& t) {
  graph_edge to = gradient_edge(t);
  if (!to) return {};
  const graph_node& node = *to.to;
  if (typeid(node) == typeid(detail::leading_node)) return static_cast<const detail::leading_node&>(node).to();
  return {{node_ref::of<graph_engine>(*to.to), to.value}, to.to};
}

}  // namespace ferry::inline v0
