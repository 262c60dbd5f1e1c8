#include <ferry/optim/distributed_optimizer.hpp>

#include <algorithm>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../autograd/dist/dist_worker.hpp"
#include "../rpc/references/table/reference_state.hpp"
#include "../rpc/references/table/reference_table.hpp"
#include "../rpc/worker/worker_core.hpp"

namespace ferry::inline v0::detail {

gradients_by_leaf::gradients_by_leaf(dist_autograd::context_id in) : known_(dist_autograd::exists(in)) {
  if (!known_) return;
  all_ = dist_autograd::get_gradients(in);
  for (const dist_autograd::leaf_gradient& each : all_) {
    places_.emplace(each.leaf.id(), &each);
    if (is_leaf(each.leaf)) continue;
    if (const held_edge edge = gradient_edge_of(each.leaf)) of_nodes_.emplace(edge.edge.to.node(), &each);
  }
}

parameter_gradient gradients_by_leaf::of(const tensor& leaf) const {
  if (const auto found = places_.find(leaf.id()); found != places_.end())
    return {found->second->dense, found->second->rows};
  const held_edge edge = gradient_edge_of(leaf);
  const auto found = edge ? of_nodes_.find(edge.edge.to.node()) : of_nodes_.end();
  return found == of_nodes_.end() ? parameter_gradient()
                                  : parameter_gradient{found->second->dense, found->second->rows};
}

tensor apart_on_host(const tensor& t) { return t.device().is_cpu() ? t.clone() : t.to(device{}); }

std::optional<std::uint64_t> owner_share::number_of(std::size_t group) const noexcept {
  const auto found = std::ranges::find(groups, static_cast<std::uint64_t>(group), &owned_share::group);
  if (found == groups.end()) return std::nullopt;
  return static_cast<std::uint64_t>(found - groups.begin());
}

std::vector<owner_share> shares_of(std::string_view algorithm, const std::vector<std::vector<rref<tensor>>>& groups) {
  if (groups.empty()) {
    throw_error(errc::invalid_argument, fmt::format("{}: an optimizer without groups of parameters", algorithm));
  }
  std::vector<owner_share> shares;
  for (std::size_t group = 0; group != groups.size(); ++group) {
    if (groups[group].empty()) {
      throw_error(errc::invalid_argument, fmt::format("{}: a group without parameters", algorithm));
    }
    for (std::size_t position = 0; position != groups[group].size(); ++position) {
      const rref<tensor>& each = groups[group][position];
      if (!each) {
        throw_error(errc::invalid_argument,
                    fmt::format("{}: parameter {} of group {} is an empty reference", algorithm, position, group));
      }
      worker_info owner = each.owner();
      auto its = std::ranges::find(shares, owner.id(), [](const owner_share& share) { return share.owner.id(); });
      if (its == shares.end()) its = shares.insert(shares.end(), {std::move(owner), {}});
      if (its->groups.empty() || its->groups.back().group != group) its->groups.push_back({group, {}});
      its->groups.back().positions.push_back(position);
    }
  }
  return shares;
}

namespace {

bool knows_context(worker_core& here, dist_autograd::context_id in) {
  return dist_worker::of(here)->find(in) != nullptr;
}

}  // namespace

void need_context(std::string_view what, const reference_handle& caller, dist_autograd::context_id in) {
  if (knows_context(*caller.usable().table->worker(), in)) return;
  throw_error(
      errc::invalid_argument,
      fmt::format(
          "{}: neither this worker nor an owner of parameters has the context {}: it is over, or was never begun here",
          what, to_string(in)));
}

void need_open_context(std::string_view what, const reference_handle& caller, dist_autograd::context_id in) {
  const std::shared_ptr<worker_core> here = caller.usable().table->worker();
  if (in.made_by() != here->agent().self().id() || knows_context(*here, in)) return;
  throw_error(errc::invalid_argument,
              fmt::format("{}: the context {} of this worker is over, or was never begun", what, to_string(in)));
}

void throw_without_owners(std::string_view algorithm) {
  throw_error(errc::invalid_argument, fmt::format("{}: this distributed_optimizer was moved from", algorithm));
}

std::string doing(std::string_view algorithm, std::string_view what) { return fmt::format("{}: {}", algorithm, what); }

}  // namespace ferry::inline v0::detail
