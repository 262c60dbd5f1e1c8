#include <ferry/profiler/report.hpp>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ferry/base/error.hpp>

#include "collective_starts.hpp"
#include "waits.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Goes from the end of an event to its beginning: what ended last before a moment is what was waited for.
class path_finder {
  using event = profiler::event;
  using path_step = profiler::path_step;
  using path_time = profiler::path_time;

 public:
  explicit path_finder(const profiler::profile& from) : all_called_(from), index_(from) {
    for (const event& each : from.events) {
      if (index_.hold_of(each) == hold::none) continue;  // its result was there when it was fetched
      (each.kind == range_kind::wait ? waits_ : children_)[index_.owner_of(each)].push_back(&each);
    }
    const auto last_first = [](const event* a, const event* b) {
      return a->ended_ns != b->ended_ns ? a->ended_ns > b->ended_ns : a->number < b->number;
    };
    for (auto& [number, of] : children_) std::sort(of.begin(), of.end(), last_first);
    for (auto& [number, of] : waits_) std::sort(of.begin(), of.end(), last_first);
  }

  // From the last step to the first. Each event is entered once, so that parents in a circle, which a peer can send, end it, too.
  std::vector<path_step> walk_back(const event& whole) {
    enter(whole, whole.began_ns, whole.ended_ns);
    while (!open_.empty()) {
      part& at = open_.back();
      const event* const next = last_before(at);
      if (!next) {
        add_own(at, at.from, at.until);
        open_.pop_back();
        continue;
      }
      const std::int64_t until = std::min(next->ended_ns, at.until);
      const std::int64_t from = std::max(asked_at(*next), at.from);
      add_own(at, until, at.until);
      at.until = from;
      enter(*next, from, until);
    }
    return std::move(steps_);
  }

 private:
  // A part of an event that is on the path, as far as it has not been walked.
  struct part {
    const event* of;
    std::int64_t from;
    std::int64_t until;
    const std::vector<const event*>* children;
    std::size_t next;
    const std::vector<const event*>* waits;
    std::size_t next_wait;
  };

  // When it could have begun: a request waits at its callee first.
  static std::int64_t asked_at(const event& which) noexcept { return which.began_ns - which.queued_ns; }

  using lists = std::unordered_map<std::uint64_t, std::vector<const event*>>;
  static const std::vector<const event*>& list_of(const lists& all, const event& which) {
    const auto found = all.find(which.number);
    return found == all.end() ? no_events() : found->second;
  }
  static const std::vector<const event*>& no_events() {
    static const std::vector<const event*> none;
    return none;
  }

  void enter(const event& which, std::int64_t from, std::int64_t until) {
    entered_.insert(which.number);
    open_.push_back({&which, from, until, &list_of(children_, which), 0, &list_of(waits_, which), 0});
  }

  // What has not ended then was not waited for; only the end of a handler is known by another clock, and may be late. Children are in
  // the order of their ends, and `until` only goes back: what is passed over once is never wanted again.
  const event* last_before(part& at) const {
    while (at.next != at.children->size()) {
      const event& each = *(*at.children)[at.next++];
      if (entered_.contains(each.number)) continue;
      if (each.ended_ns > at.until && each.kind != range_kind::handler) continue;
      if (std::min(each.ended_ns, at.until) > std::max(asked_at(each), at.from)) return &each;
    }
    return nullptr;
  }

  void add(const event& which, path_time what, std::int64_t from, std::int64_t until) {
    if (until > from) steps_.push_back({which.number, which.node, what, from, until});
  }

  // What no child accounts for. Each time of a part lies before the one that was added last.
  void add_own(part& at, std::int64_t from, std::int64_t until) {
    if (until <= from) return;
    const event& which = *at.of;
    if (which.kind == range_kind::call) return add(which, path_time::communication, from, until);
    if (which.kind == range_kind::wait) return add(which, path_time::waiting, from, until);
    if (which.kind == range_kind::collective) {
      const std::int64_t all_called = std::clamp(all_called_.of(which), from, until);
      add(which, path_time::communication, all_called, until);
      return add(which, path_time::waiting, from, all_called);
    }
    const std::int64_t began = std::clamp(which.began_ns, from, std::max(from, until));
    for (; at.next_wait != at.waits->size(); ++at.next_wait) {
      const event& each = *(*at.waits)[at.next_wait];
      if (each.ended_ns <= began) break;
      const std::int64_t end = std::min(each.ended_ns, until);
      const std::int64_t begin = std::max(each.began_ns, began);
      if (end > begin) {
        add(which, path_time::compute, end, until);
        add(each, path_time::waiting, begin, end);
        until = begin;
      }
      if (each.began_ns < began) break;  // goes on before that
    }
    add(which, path_time::compute, began, until);
    add(which, path_time::queueing, from, began);
  }

  const collective_starts all_called_;
  const wait_index index_;
  lists children_;
  lists waits_;  // by what waits
  std::unordered_set<std::uint64_t> entered_;
  std::vector<part> open_;  // each within the one before
  std::vector<path_step> steps_;
};

}  // namespace
}  // namespace detail

namespace profiler {

std::vector<path_step> critical_path(const profile& from, std::uint64_t of) {
  const event* const whole = from.find(of);
  if (!whole) throw_error(errc::invalid_argument, fmt::format("the profile has no event {}", of));
  std::vector<path_step> steps = detail::path_finder(from).walk_back(*whole);
  std::reverse(steps.begin(), steps.end());
  return steps;
}

const event* longest_event(const profile& from) noexcept {
  // A handler without its call was made elsewhere; what waits does so for others.
  const auto rank = [](const event& each) {
    switch (each.kind) {
      case range_kind::wait: return 0;
      case range_kind::collective: return 1;
      case range_kind::handler: return 2;
      default: return 3;
    }
  };
  const event* longest = nullptr;
  for (const event& each : from.events) {
    if (each.parent != 0) continue;
    const int better = longest ? rank(each) - rank(*longest) : 1;
    if (better > 0 || (better == 0 && each.duration_ns() > longest->duration_ns())) longest = &each;
  }
  return longest;
}

}  // namespace profiler
}  // namespace ferry::inline v0
