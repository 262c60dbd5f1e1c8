#include "device_interval.hpp"

#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace ferry::inline v0::detail {

const timing_operations* timing_of(device_kind kind) noexcept {
  return kind == device_kind::cuda ? &cuda_timing : nullptr;
}

/// The intervals of one device. Never destroyed, nor are its events: the driver may be unloaded earlier.
struct interval_pool {
  using event_pair = device_interval::event_pair;
  using kept_interval = std::shared_ptr<device_interval>;
  // Of the oldest ones, when a pair is wanted: some may be behind work that takes long, on streams of their own.
  static constexpr std::size_t most_asked = 4;

  interval_pool(device on, const timing_operations& how) : where(on), timing(how) {
    unused.reserve(device_interval::most_intervals);
  }

  // All of them with the mutex held.
  void give_back(event_pair& pair) noexcept {
    if (!pair.first) return;
    unused.push_back(std::exchange(pair, {}));  // there is room for all that can be made
  }
  // Asks for the length of an interval that is pending.
  void ask(device_interval& about) noexcept {
    about.length_ns_ = timing.elapsed_ns(where, about.events_.first, about.events_.last);
    if (about.length_ns_ != device_time_pending) give_back(about.events_);
  }
  void collect() noexcept {
    std::size_t asked = 0;
    for (auto each = pending.begin(); each != pending.end() && asked != most_asked; ++asked) {
      device_interval& oldest = **each;
      if (each->use_count() == 1) {
        give_back(oldest.events_);
      } else {
        ask(oldest);
      }
      each = oldest.events_.first ? std::next(each) : pending.erase(each);
    }
  }
  // A pair that is not in use. Null: one may be made, and is counted already (`make`), or there are too many.
  event_pair take(bool& make) noexcept {
    make = false;
    if (unused.empty()) collect();
    if (unused.empty()) {
      make = made != device_interval::most_intervals;
      if (make) ++made;
      return {};
    }
    const event_pair found = unused.back();
    unused.pop_back();
    return found;
  }

  const device where;
  const timing_operations& timing;
  std::mutex mutex;  // guards the rest, and what intervals say that it does
  std::vector<event_pair> unused;
  std::list<kept_interval> pending;  // by their ends
  std::size_t made = 0;
};

namespace {

struct interval_pools {
  std::mutex mutex;
  std::map<device, interval_pool> all;
};

interval_pools& pools_of_intervals() {
  static auto* const instance = new interval_pools;
  return *instance;
}

interval_pool* pool_of_intervals(device where) {
  const timing_operations* timing = timing_of(where.kind);
  if (!timing) return nullptr;
  interval_pools& pools = pools_of_intervals();
  const std::lock_guard lock(pools.mutex);
  return &pools.all.try_emplace(where, where, *timing).first->second;
}

device_interval::event_pair make_pair_of_events(const interval_pool& pool) noexcept {
  device_interval::event_pair made{pool.timing.create_event(pool.where), pool.timing.create_event(pool.where)};
  if (made.first && made.last) return made;
  for (void* each : {made.first, made.last}) {
    if (each) pool.timing.destroy_event(pool.where, each);
  }
  return {};
}

}  // namespace

std::shared_ptr<device_interval> device_interval::begin(const stream& on) noexcept {
  try {
    interval_pool* const pool = pool_of_intervals(on.device());
    if (!pool) return nullptr;
    bool make = false;
    event_pair events;
    {
      const std::lock_guard lock(pool->mutex);
      events = pool->take(make);
    }
    if (make) {
      events = make_pair_of_events(*pool);
      if (!events.first) {
        const std::lock_guard lock(pool->mutex);
        --pool->made;
      }
    }
    if (!events.first) return nullptr;
    std::shared_ptr<device_interval> begun;
    try {
      begun = std::make_shared<device_interval>(*pool, on, events);
    } catch (const std::exception&) {
      const std::lock_guard lock(pool->mutex);
      pool->give_back(events);
      return nullptr;
    }
    return pool->timing.record_event(on.device(), events.first, on.handle()) ? begun : nullptr;
  } catch (const std::exception&) {  // no memory for the pool
    return nullptr;
  }
}

void device_interval::end() noexcept {
  // Not under the lock: threads that queue work do not wait for each other here.
  const bool marked = pool_.timing.record_event(on_.device(), events_.last, on_.handle());
  const std::lock_guard lock(pool_.mutex);
  ended_ = true;
  try {
    if (marked) place_ = pool_.pending.insert(pool_.pending.end(), weak_from_this().lock());
  } catch (const std::exception&) {  // no memory
    length_ns_ = device_time_unknown;
  }
  if (!marked) length_ns_ = device_time_unknown;
  if (length_ns_ == device_time_unknown) pool_.give_back(events_);
}

std::int64_t device_interval::length_ns() noexcept {
  std::list<std::shared_ptr<device_interval>> gone;  // destroyed without the lock
  const std::lock_guard lock(pool_.mutex);
  if (length_ns_ != device_time_pending || !ended_) return length_ns_;
  pool_.ask(*this);
  if (!events_.first) gone.splice(gone.end(), pool_.pending, place_);
  return length_ns_;
}

device_interval::~device_interval() {
  if (!events_.first) return;  // the pool holds one that has ended, until its events are back
  const std::lock_guard lock(pool_.mutex);
  pool_.give_back(events_);
}

std::size_t interval_events_made(device where) noexcept {
  interval_pools& pools = pools_of_intervals();
  const std::lock_guard lock(pools.mutex);
  const auto found = pools.all.find(where);
  if (found == pools.all.end()) return 0;
  const std::lock_guard own(found->second.mutex);
  return found->second.made;
}

}  // namespace ferry::inline v0::detail
