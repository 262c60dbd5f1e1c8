#pragma once

// The peers that a tick has to look at.

#include <atomic>
#include <utility>

#include "../links/peers.hpp"

namespace ferry::inline v0::detail {

/// A set of peers, linked through them: a tick costs what the few cost that this worker has connections to or watches,
/// whatever the size of the group. Thread-safe, without locks.
class ticking_peers {
 public:
  /// Call after the change that makes it one to look at.
  void add(peer& whom) noexcept {
    if (whom.ticking.exchange(true, std::memory_order_acq_rel)) return;
    peer* first = first_.load(std::memory_order_relaxed);
    do {
      whom.next_ticking = first;
    } while (!first_.compare_exchange_weak(first, &whom, std::memory_order_release, std::memory_order_relaxed));
  }
  /// Takes all of them out, and passes each to `look`, which returns whether to keep it. What changes a peer meanwhile
  /// adds it once more: it was taken out before `look` sees it. `look` must not throw: those after it would be lost.
  template <class Look>
  void for_each(const Look& look) noexcept {
    static_assert(noexcept(look(std::declval<peer&>())));
    for (peer* each = first_.exchange(nullptr, std::memory_order_acquire); each;) {
      peer* const next = each->next_ticking;
      each->ticking.store(false, std::memory_order_release);
      if (look(*each)) add(*each);
      each = next;
    }
  }

 private:
  std::atomic<peer*> first_{nullptr};
};

}  // namespace ferry::inline v0::detail
