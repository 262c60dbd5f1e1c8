#include "ddp_calls.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "../autograd/dist/dist_context.hpp"
#include "../autograd/dist/dist_worker.hpp"
#include "../autograd/dist/wire_nodes.hpp"

namespace ferry::inline v0::detail {

noted_call note_of_call(const std::vector<held_edge>& outputs, const std::vector<ddp_part>& trained,
                        worker_core& worker) {
  std::unordered_set<const void*> met;
  std::vector<node_ref> open;
  const auto meet = [&](const node_edge& edge) {
    if (edge && met.insert(edge.to.node()).second) open.push_back(edge.to);
  };
  noted_call call;
  for (const held_edge& each : outputs) {
    meet(each.edge);
    call.outputs.emplace_back(each.keeps);
  }
  std::vector<node_edge> edges;
  std::vector<std::shared_ptr<const sent_message>> kept;
  while (!open.empty()) {
    const node_ref node = open.back();
    open.pop_back();
    if (const received_node* received = as_received(node)) {
      const std::shared_ptr<dist_context> context =
          dist_worker::of(worker)->find(dist_autograd::context_id{received->from().context});
      if (!context) continue;  // it is over: no pass goes on there
      for (auto& sent : context->sent_of(received->from().upstream)) {
        for (const held_edge& each : sent->edges) meet(each.edge);
        kept.push_back(std::move(sent));
      }
      continue;
    }
    edges.clear();
    node.engine().edges(node.node(), edges);
    for (const node_edge& each : edges) meet(each);
  }
  for (std::size_t i = 0; i != trained.size(); ++i) {
    if (!met.contains(trained[i].leaf.edge.to.node())) call.unused.push_back(i);
  }
  return call;
}

void noted_calls::add(noted_call&& call) {
  // No pass can begin at outputs that are gone.
  std::erase_if(calls_, [](const noted_call& each) {
    return std::all_of(each.outputs.begin(), each.outputs.end(), [](const auto& output) { return output.expired(); });
  });
  calls_.push_back(std::move(call));
}

std::vector<std::size_t> noted_calls::take_unused() {
  std::vector<noted_call> calls = std::exchange(calls_, {});
  if (calls.empty()) return {};
  std::vector<std::size_t> unused = std::move(calls.back().unused);
  calls.pop_back();
  for (const noted_call& each : calls) {
    std::erase_if(unused,
                  [&](std::size_t i) { return !std::binary_search(each.unused.begin(), each.unused.end(), i); });
  }
  return unused;
}

}  // namespace ferry::inline v0::detail
