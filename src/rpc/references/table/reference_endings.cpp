// How references end without being dropped: when workers die, leave or are declared dead, and when their own worker
// shuts down.

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../../worker/worker_core.hpp"
#include "reference_table.hpp"

namespace ferry::inline v0::detail {
namespace {

// The error, or, without memory for it, that one.
template <class Describe>
std::exception_ptr error_of(errc kind, const Describe& describe) noexcept {
  try {
    return make_error(kind, describe());
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

// Collects the forks that still have handles.
void reference_table::add_held_forks(std::vector<std::shared_ptr<reference_state>>& to) const {
  for (const auto& [fork, state] : forks_) {
    if (auto held = state.lock()) to.push_back(std::move(held));
  }
}

template <class Which, class Reason>
void reference_table::end_held_forks(const Which& which, const Reason& reason) noexcept {
  for (std::optional<held_fork> last;;) {
    std::shared_ptr<reference_state> held;  // destroyed without the mutex, which it locks
    {
      const std::lock_guard lock(mutex_);
      auto next = last ? forks_.upper_bound(*last) : forks_.begin();
      while (next != forks_.end() && (!which(next->first) || !(held = next->second.lock()))) ++next;
      if (next == forks_.end()) return;
      last = next->first;
    }
    held->end(reason(*held));
  }
}

void reference_table::gone(worker_id id, incarnation_id incarnation) noexcept {
  const peer_incarnation peer{id, incarnations_known_ ? incarnation : incarnation_id{}};
  const bool ended = end([&](reference_effects& effects, consequences&) {
    leaving_.erase(peer);
    outboxes_.erase(peer);
    std::erase_if(doubted_, [&](const auto& each) { return each.first == peer; });
    for (auto* list : {&watched_, &late_}) std::erase_if(*list, [&](const watched& each) { return each.to == peer; });
    protocol_.gone(peer, effects);
  });
  if (ended) return;
  log(log_level::error, "no memory to end all references of a worker that is gone");
  end_held_forks([&](const held_fork& each) { return each.owner == peer; },
                 [&](const reference_state& each) { return lost(each, errc::peer_lost); });
}

void reference_table::leaving(worker_id id, incarnation_id incarnation) noexcept {
  const peer_incarnation peer{id, incarnations_known_ ? incarnation : incarnation_id{}};
  {
    const std::lock_guard lock(mutex_);
    if (protocol_.is_gone(peer)) return;
    try {
      leaving_.insert(peer);
    } catch (const std::bad_alloc&) {
      log(log_level::error,
          "no memory to keep in mind that a worker leaves: references to its objects that arrive from "
          "now on fail when it has left");
    }
  }
  end_held_forks([&](const held_fork& each) { return each.owner == peer; },
                 [&](const reference_state& each) { return lost(each, errc::peer_lost); });
}

void reference_table::fence(const std::string& reason) noexcept {
  const auto why = error_of(errc::fenced, [&] { return "the group has declared this worker dead: " + reason; });
  end_held_forks([](const held_fork&) { return true; }, [&](const reference_state&) { return why; });
}

void reference_table::clean_up(deadline until, bool alone) {
  const auto wait = [&](auto&& over) {
    std::unique_lock lock(mutex_);
    if (until.is_never()) {
      changed_.wait(lock, over);
      return true;
    }
    return changed_.wait_until(lock, until.at(), over);
  };
  const auto stopped = [&] { return closed_ || (alone ? stopped_always_ : stopped_unless_alone_); };
  const auto quiet = [&] {
    return stopped() || (protocol_.figures().pending_users == 0 && protocol_.figures().pending_children == 0);
  };
  // Send outstanding queries now, and flush controls that wait to be batched.
  change([&](reference_effects& effects, consequences&) {
    flush_controls_ = true;
    for (auto& [peer, outbox] : outboxes_) outbox.flush();
    for (auto* list : {&watched_, &late_}) {
      for (const watched& each : std::exchange(*list, {})) protocol_.query(each.to, each.transfer, effects, each.call);
    }
  });
  send_controls();
  if (!wait(quiet)) {
    log(log_level::warning,
        fmt::format("{}: references are still in flight at the shutdown's deadline; the shutdown continues",
                    name_of(self_)));
  }
  std::vector<std::shared_ptr<reference_state>> ended;
  change([&](reference_effects& effects, consequences&) {
    add_held_forks(ended);
    protocol_.drop_all(effects);
  });
  const auto why = make_error(errc::reference_deleted, "the reference ended with the shutdown of its worker");
  for (const auto& each : ended) each->end(why);
  ended.clear();
  const auto acknowledged = [&] {
    return stopped() ||
           std::all_of(outboxes_.begin(), outboxes_.end(), [](const auto& each) { return each.second.empty(); });
  };
  const auto free = [&] { return stopped() || alone || protocol_.figures().owners == 0; };
  if (!wait(acknowledged) || !wait(free)) {
    // A snapshot: holders that terminate while this worker shuts down remove their references.
    auto left = alone ? std::vector<std::string>() : leaks();
    log(log_level::warning,
        fmt::format("{}: other workers still have references to its objects at the end of its shutdown",
                    name_of(self_)));
    const std::lock_guard lock(mutex_);
    left_ = std::move(left);
  }
}

void reference_table::stop_clean_up(bool entirely) noexcept {
  const std::lock_guard lock(mutex_);
  stopped_unless_alone_ = true;
  stopped_always_ = stopped_always_ || entirely;
  changed_.notify_all();
}

void reference_table::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    outboxes_.clear();
    watched_.clear();
    late_.clear();
    doubted_.clear();
    disarm();
    changed_.notify_all();
  }
  const auto why = error_of(errc::reference_deleted,
                            [] { return std::string("the worker that had this reference has been shut down"); });
  end_held_forks([](const held_fork&) { return true; }, [&](const reference_state&) { return why; });
  std::optional<object_id> last;
  while (const auto held = next_hold(last)) held->end(why);
  for (std::size_t bucket = 0, buckets = 0;;) {
    ref_ptr<owned_object> unmade;
    {
      const std::lock_guard lock(mutex_);
      if (objects_.bucket_count() != buckets) bucket = 0;
      buckets = objects_.bucket_count();
      for (; bucket != buckets && !unmade; bucket += unmade ? 0 : 1) {
        for (auto each = objects_.begin(bucket); each != objects_.end(bucket) && !unmade; ++each) {
          if (!each->second->ready()) unmade = each->second;
        }
      }
    }
    if (!unmade) return;
    unmade->fail(why);
  }
}

// The handle on an own object behind `last`, which becomes that object; null: there is no further one. The caller drops
// it without the mutex, which its end locks.
std::shared_ptr<reference_state> reference_table::next_hold(std::optional<object_id>& last) noexcept {
  std::shared_ptr<reference_state> held;
  const std::lock_guard lock(mutex_);
  auto next = last ? holds_.upper_bound(*last) : holds_.begin();
  while (next != holds_.end() && !(held = next->second.lock())) ++next;
  if (held) last = next->first;
  return held;
}

void reference_table::clear(bool all) noexcept {
  // Before the objects are taken from the table, so that a long chain of them is destroyed one by one.
  std::optional<object_id> last;
  while (const auto held = all ? next_hold(last) : nullptr) held->drop_local();
  std::unordered_map<object_id, ref_ptr<owned_object>, object_hash> objects;
  object_list kept;
  const std::lock_guard lock(mutex_);
  objects.swap(objects_);
  while (auto each = kept_.pop()) kept.push(std::move(each));
}

}  // namespace ferry::inline v0::detail
