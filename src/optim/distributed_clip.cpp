#include <ferry/optim/distributed_clip.hpp>

#include <cmath>
#include <optional>
#include <unordered_set>

#include <ferry/autograd/dist/backward.hpp>
#include <ferry/autograd/dist/update_turn.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/optim/distributed_optimizer.hpp>
#include <ferry/tensor/factories.hpp>

#include "../autograd/dist/dist_context.hpp"
#include "../autograd/dist/dist_worker.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "apply.hpp"
#include "norms.hpp"

namespace ferry::inline v0 {
namespace detail {

constexpr const char* clip_name = "clip_grad_norm_";

/// The parameters' gradients that are there, to be written in place. `coalesced`: those by rows so that each element is one number.
std::vector<tensor> owned_gradients(const gradients_by_leaf& gradients, const std::vector<rref<tensor>>& parameters,
                                    bool coalesced) {
  std::vector<tensor> found;
  std::vector<held_edge> held;           // while their nodes are compared
  std::unordered_set<const void*> seen;  // nodes: several tensors may stand for one leaf of another engine
  for (const rref<tensor>& each : parameters) {
    const tensor& parameter = each.local_value();
    const held_edge edge = gradient_edge_of(parameter);
    if (!edge || !seen.insert(edge.edge.to.node()).second) continue;
    held.push_back(edge);
    const parameter_gradient its = gradients.of(parameter);
    if (its.rows.defined()) {
      found.push_back(coalesced ? its.rows.coalesce().values() : its.rows.values());
    } else if (its.dense.defined()) {
      found.push_back(its.dense);
    }
  }
  return need_gradients(clip_name, found);
}

// Both are called on the first of the parameters, at their owner.

/// None: the owner does not know the context.
std::optional<double> norm_at_owner(const tensor&, dist_autograd::context_id in, std::vector<rref<tensor>> parameters) {
  const gradients_by_leaf gradients(in);
  if (!gradients.known()) return std::nullopt;
  const std::vector<tensor> found = owned_gradients(gradients, parameters, true);
  return found.empty() ? 0 : norm_of(found).to(device{}).item<double>();
}

void rescale_at_owner(const tensor&, dist_autograd::context_id in, std::vector<rref<tensor>> parameters, double norm,
                      double most) {
  const gradients_by_leaf gradients(in);
  const std::vector<tensor> found = owned_gradients(gradients, parameters, false);
  std::vector<device> devices;
  for (const tensor& each : found) devices.push_back(each.device());
  const dist_autograd::update_turn turn(dist_autograd::worker_updates(),
                                        devices);  // steps come after it, on devices, too
  rescale(found, full({}, norm, dtype::f64), most);
  // What reads the gradients, or adds to them, comes after it as well.
  const auto context = dist_worker::of(*current_worker())->find(in);
  if (!context) return;
  std::vector<stream> streams;
  for (const device& each : devices) {
    if (!each.is_cpu()) streams.push_back(current_stream(each));
  }
  context->gradients_on(streams);
}

namespace {

const bool clipping_methods = [] {
  add_library_methods({usable_method<&norm_at_owner, method_flavour::object_call>().id,
                       usable_method<&rescale_at_owner, method_flavour::object_call>().id});
  return true;
}();

}  // namespace
}  // namespace detail

double clip_grad_norm_(dist_autograd::context_id in, const std::vector<rref<tensor>>& parameters, double most,
                       const call_options& calls) {
  using namespace detail;
  need_bound(clip_name, "most", most);
  if (parameters.empty()) return 0;
  need_open_context(clip_name, parameters.front().handle(), in);
  std::vector<worker_info> owners;
  std::vector<std::vector<rref<tensor>>> own;
  for (const owner_share& each : shares_of(clip_name, {parameters})) {
    owners.push_back(each.owner);
    own.emplace_back();
    for (const std::uint64_t position : each.groups.front().positions) own.back().push_back(parameters[position]);
  }
  const auto norms = at_owners(doing(clip_name, "the sum of squares"), owners, [&](std::size_t i) {
    return own[i].front().rpc_async<&norm_at_owner>(calls, in, own[i]);
  });
  double squares = 0;
  bool known = false;
  for (const std::optional<double>& each : norms) {
    squares += each.value_or(0) * each.value_or(0);
    known = known || each.has_value();
  }
  if (!known) need_context(clip_name, parameters.front().handle(), in);
  const double norm = std::sqrt(squares);
  if (std::isinf(most) || most / (norm + 1e-6) >= 1) return norm;
  at_owners(doing(clip_name, "the bounding of gradients"), owners,
            [&](std::size_t i) { return own[i].front().rpc_async<&rescale_at_owner>(calls, in, own[i], norm, most); });
  return norm;
}

}  // namespace ferry::inline v0
