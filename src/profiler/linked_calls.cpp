#include "linked_calls.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bounded_sum.hpp"
#include "recording.hpp"

namespace ferry::inline v0::detail {
namespace {

class call_linker {
  using event = profiler::event;

 public:
  explicit call_linker(profiler::profile& in) : in_(in) {
    for (event& each : in_.events) {
      children_[each.parent].push_back(&each);
      by_number_.emplace(each.number, &each);
      if (each.kind != range_kind::handler || each.remote || each.parent != 0) continue;
      if (each.call != 0) served_.emplace(key(each.peer, each.node, each.call), &each);
      if (each.peer < 0) continue;
      own_handlers& of_two = of_callers_[{each.peer, each.node}];
      of_two.all.push_back(&each);
      of_two.uncertainty_ns = std::max(of_two.uncertainty_ns, each.uncertainty_ns);
    }
    for (auto& [two, of_two] : of_callers_) {
      std::stable_sort(of_two.all.begin(), of_two.all.end(),
                       [](const event* a, const event* b) { return a->began_ns < b->began_ns; });
    }
  }

  void link() {
    for (event& each : in_.events) {
      if (each.kind != range_kind::call || each.remote || each.call == 0) continue;
      if (event* handler = handler_of(each)) link(each, *handler);
    }
    // Of a call that a worker made which does not tell its number: what the reply to that has brought to its own caller.
    for (event& each : in_.events) {
      if (each.kind != range_kind::handler || !each.remote || dropped_.contains(each.number)) continue;
      const auto call = by_number_.find(each.parent);
      if (call == by_number_.end() || call->second->kind != range_kind::call || !call->second->remote) continue;
      if (event* handler = same_as(each, call->second->node)) link(*call->second, *handler);
    }
    std::erase_if(in_.events, [this](const event& each) { return dropped_.contains(each.number); });
  }

 private:
  // Of one caller at one callee, by their beginnings.
  struct own_handlers {
    std::vector<event*> all;
    std::int64_t uncertainty_ns = 0;  // the largest
  };
  using call_of_two = std::tuple<std::int32_t, std::int32_t, std::uint64_t>;
  static call_of_two key(std::int32_t caller, std::int32_t callee, std::uint64_t call) noexcept {
    return {caller, callee, call};
  }
  static std::int64_t between(std::int64_t one, std::int64_t other) noexcept {
    return one > other ? one - other : other - one;
  }

  // A number is used again after a connection was lost: the handler ran while the call was under way.
  event* handler_of(const event& call) {
    const auto [first, last] = served_.equal_range(key(call.node, call.peer, call.call));
    for (auto each = first; each != last;) {
      event* const handler = each->second;
      if (handler->parent != 0) {
        each = served_.erase(each);
        continue;
      }
      ++each;
      const std::int64_t tolerance = handler->uncertainty_ns + call.uncertainty_ns;
      if (handler->ended_ns >= call.began_ns - tolerance && handler->began_ns <= call.ended_ns + tolerance)
        return handler;
    }
    return nullptr;
  }

  // What the worker itself has recorded of the request whose handler came back as `copy`; null: nothing.
  event* same_as(const event& copy, std::int32_t caller) const {
    const auto found = of_callers_.find({caller, copy.node});
    if (found == of_callers_.end()) return nullptr;
    const own_handlers& of_two = found->second;
    std::int64_t tolerance = of_two.uncertainty_ns;
    add_bounded(tolerance, copy.uncertainty_ns);
    add_bounded(tolerance, rounding);
    std::int64_t from = copy.began_ns;
    add_bounded(from, -tolerance);
    std::int64_t to = copy.began_ns;
    add_bounded(to, tolerance);
    event* nearest = nullptr;
    auto each = std::lower_bound(of_two.all.begin(), of_two.all.end(), from,
                                 [](const event* one, std::int64_t ns) { return one->began_ns < ns; });
    for (; each != of_two.all.end() && (*each)->began_ns <= to; ++each) {
      event* const own = *each;
      const std::int64_t off = between(own->began_ns, copy.began_ns);
      if (own->parent != 0 || own->thread != copy.thread || !is_named(copy.name, own->name)) continue;
      if (off > own->uncertainty_ns + copy.uncertainty_ns + rounding) continue;
      if (!nearest || off < between(nearest->began_ns, copy.began_ns)) nearest = own;
      if (own->began_ns >= copy.began_ns) break;
    }
    return nearest;
  }
  static bool is_named(std::string_view copy, std::string_view own) noexcept {
    return copy.size() > own.size() + remote_mark.size() && copy.ends_with(own) &&
           copy.substr(0, copy.size() - own.size()).ends_with(remote_mark);
  }

  void link(const event& call, event& handler) {
    handler.parent = call.number;
    std::vector<std::uint64_t> next{call.number};
    while (!next.empty()) {
      const auto of = children_.find(next.back());
      next.pop_back();
      if (of == children_.end()) continue;
      for (const event* each : of->second) {
        if (each->remote && dropped_.insert(each->number).second) next.push_back(each->number);
      }
    }
  }

  static constexpr std::int64_t rounding = 1000;  // of times that are those of the processor's counter

  profiler::profile& in_;
  std::unordered_map<std::uint64_t, std::vector<const event*>> children_;
  std::unordered_map<std::uint64_t, event*> by_number_;
  std::multimap<call_of_two, event*> served_;
  std::map<std::pair<std::int32_t, std::int32_t>, own_handlers> of_callers_;
  std::unordered_set<std::uint64_t> dropped_;
};

}  // namespace

void link_calls(profiler::profile& in) { call_linker(in).link(); }

}  // namespace ferry::inline v0::detail
