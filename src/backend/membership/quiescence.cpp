#include "quiescence.hpp"

namespace ferry::inline v0::detail {

void quiescence::changed() noexcept {
  if (waiters_.load() == 0) return;
  const std::lock_guard lock(mutex_);
  ++activity_;
  changed_.notify_all();
}

// It may come before the wait that it interrupts has begun.
void quiescence::interrupt(leave_interrupt level) noexcept {
  const int wanted = static_cast<int>(level);
  int before = interrupt_.load();
  while (before < wanted && !interrupt_.compare_exchange_weak(before, wanted)) {
  }
  const std::lock_guard lock(mutex_);
  ++activity_;
  changed_.notify_all();
}

quiescence::result quiescence::wait(deadline until, leave_interrupt level, const std::function<bool()>& quiet) {
  struct counted {
    explicit counted(std::atomic<int>& to) : count(to) { count.fetch_add(1); }
    ~counted() { count.fetch_sub(1); }
    counted(const counted&) = delete;
    counted& operator=(const counted&) = delete;
    std::atomic<int>& count;
  } const waiting(waiters_);
  for (bool in_time = true;;) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      seen = activity_;
    }
    if (interrupted(level)) return result::interrupted;
    if (quiet()) return result::quiet;
    if (!in_time) return result::too_late;
    ranked_lock lock(mutex_);
    const auto news = [&] { return activity_ != seen; };
    if (until.is_never()) {
      changed_.wait(lock, news);
    } else {
      in_time = changed_.wait_until(lock, until.at(), news);
    }
  }
}

}  // namespace ferry::inline v0::detail
