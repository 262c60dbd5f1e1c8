#include "waits.hpp"

#include <algorithm>
#include <string>

namespace ferry::inline v0::detail {
namespace {

using profiler::event;

// Parents in a circle, which a peer can send, end, too.
constexpr int most_generations = 64;

// Of collectives: those of a process_group, whose names have that of the group. A barrier() of workers waits itself.
bool is_asynchronous(const event& each) noexcept {
  if (each.kind == range_kind::collective) return each.name.find('#') != std::string::npos;
  return each.kind == range_kind::call && !each.name.starts_with("rpc_sync#");
}

}  // namespace

wait_index::wait_index(const profiler::profile& from) {
  for (const event& each : from.events) {
    by_number_.emplace(each.number, &each);
    if (each.kind == range_kind::wait) waits_[{each.node, each.thread}].push_back(&each);
  }
  for (auto& [thread, all] : waits_) {
    std::stable_sort(all.begin(), all.end(), [](const event* a, const event* b) { return a->began_ns < b->began_ns; });
    // Of those within others, which profiles made elsewhere may have, the outer one counts.
    std::int64_t until = 0;
    bool any = false;
    std::erase_if(all, [&](const event* each) {
      if (any && each->ended_ns <= until) return true;
      until = each->ended_ns;
      any = true;
      return false;
    });
  }
  for (const event& each : from.events) {
    if (is_asynchronous(each)) asynchronous_.emplace(&each, find(each));
  }
}

const event* wait_index::at(const std::vector<const event*>& waits, std::int64_t moment_ns) {
  const auto after = std::upper_bound(waits.begin(), waits.end(), moment_ns,
                                      [](std::int64_t ns, const event* each) { return ns < each->began_ns; });
  if (after == waits.begin()) return nullptr;
  const event* const before = *(after - 1);
  return moment_ns <= before->ended_ns ? before : nullptr;
}

wait_index::held wait_index::find(const event& which) const {
  const auto own = waits_.find({which.node, which.thread_of_begin()});
  if (own != waits_.end()) {
    if (const event* const wait = at(own->second, which.ended_ns)) return {hold::awaited, wait};
  }
  // Another thread has waited for it if both do parts of the same.
  const std::uint64_t root = root_of(which);
  for (auto each = waits_.lower_bound({which.node, 0}); each != waits_.end() && each->first.first == which.node;
       ++each) {
    const event* const wait = each == own ? nullptr : at(each->second, which.ended_ns);
    if (wait && root_of(*wait) == root) return {hold::awaited, wait};
  }
  // to_here() waits in the call, and has the name that to_here_async() has.
  if (which.name.starts_with("to_here#")) return {hold::whole, nullptr};
  return {own == waits_.end() ? hold::suspend : hold::none, nullptr};
}

std::uint64_t wait_index::root_of(const event& which) const {
  const event* root = &which;
  for (int i = 0; i != most_generations; ++i) {
    const auto found = by_number_.find(root->parent);
    if (found == by_number_.end() || found->second->node != which.node) break;
    root = found->second;
  }
  return root->number;
}

std::uint64_t wait_index::outer(const event& which, bool may_outlive) const {
  std::uint64_t owner = which.parent;
  for (int i = 0; i != most_generations; ++i) {
    const auto found = by_number_.find(owner);
    if (found == by_number_.end()) return owner;
    const event& around = *found->second;
    const bool outlived =
        may_outlive && around.ended_ns < which.ended_ns && around.node == which.node && around.parent != 0;
    if (around.kind != range_kind::wait && !outlived) return owner;
    owner = around.parent;
  }
  return owner;
}

std::uint64_t wait_index::owner_of(const event& which) const {
  const auto [how, wait] = of(which);
  if (!wait) return outer(which, how != hold::whole);
  const std::uint64_t waiter = outer(*wait, false);
  return waiter == 0 ? wait->number : waiter;
}

}  // namespace ferry::inline v0::detail
