#include "message_set.hpp"

#include <algorithm>

#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

message_set::message_set(std::vector<interval> intervals) : intervals_(std::move(intervals)) {
  for (std::size_t i = 0; i != intervals_.size(); ++i) {
    const interval& each = intervals_[i];
    // Those that touch would be a second text for one set, unless they are of two senders.
    const auto follows = [&](const interval& before) {
      return before.last < each.first &&
             (before.last + 1 != each.first || sender_of(before.last) != sender_of(each.first));
    };
    if (each.first > each.last || sender_of(each.first) != sender_of(each.last) ||
        (i != 0 && !follows(intervals_[i - 1])))
      throw_error(errc::malformed, "a set of messages with gradients is not in order");
  }
}

bool message_set::contains(std::uint64_t message) const noexcept {
  const auto after = std::upper_bound(intervals_.begin(), intervals_.end(), message,
                                      [](std::uint64_t m, const interval& each) { return m < each.first; });
  return after != intervals_.begin() && std::prev(after)->last >= message;
}

void message_set::merge(const std::vector<interval>& more) {
  if (more.empty()) return;
  const auto by_first = [](const interval& a, const interval& b) { return a.first < b.first; };
  std::vector<interval> all;
  all.reserve(intervals_.size() + more.size());
  std::merge(intervals_.begin(), intervals_.end(), more.begin(), more.end(), std::back_inserter(all), by_first);
  std::size_t used = 0;
  for (std::size_t next = 1; next != all.size(); ++next) {
    interval& before = all[used];
    // Those of different senders do not become one: numbers end below 2^48 - 1.
    const bool joins = all[next].first <= before.last ||
                       (all[next].first == before.last + 1 && sender_of(all[next].first) == sender_of(before.last));
    if (joins) {
      before.last = std::max(before.last, all[next].last);
    } else {
      all[++used] = all[next];
    }
  }
  all.resize(used + 1);
  intervals_ = std::move(all);
}

std::vector<worker_id> message_set::senders() const {
  std::vector<worker_id> all;
  for (const interval& each : intervals_) {
    if (all.empty() || all.back() != sender_of(each.first)) all.push_back(sender_of(each.first));
  }
  return all;
}

bool message_set::has_sender(worker_id sender) const noexcept {
  return std::any_of(intervals_.begin(), intervals_.end(),
                     [&](const interval& each) { return sender_of(each.first) == sender; });
}

}  // namespace ferry::inline v0::detail
