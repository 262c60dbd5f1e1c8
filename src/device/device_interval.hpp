#pragma once

// The time that work takes on a device, as the device measures it.

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include <ferry/device/stream.hpp>

#include "timing.hpp"

namespace ferry::inline v0::detail {

struct interval_pool;

/// From one place in a stream to a later one. The host never waits for the device, and captures of streams are not disturbed.
///
/// Its two events come from a pool of each device, of most_intervals pairs: they return to it when the time is known, or when
/// nothing but the pool holds the interval. A pool that has none left asks its oldest intervals whether they are over.
/// Thread-safe, but for end().
class device_interval : public std::enable_shared_from_this<device_interval> {
 public:
  static constexpr std::size_t most_intervals = 4096;

  /// Begins where the stream is now. Null: the kind of device does not measure, the stream is being captured, the device has
  /// failed, or all pairs of events are in use.
  [[nodiscard]] static std::shared_ptr<device_interval> begin(const stream& on) noexcept;
  /// Ends where its stream is now. Once, by the thread that began it.
  void end() noexcept;
  [[nodiscard]] ferry::device device() const noexcept { return on_.device(); }
  /// In nanoseconds, or device_time_pending or device_time_unknown. Asks the device, and does not wait.
  [[nodiscard]] std::int64_t length_ns() noexcept;

  struct event_pair {
    void* first = nullptr;
    void* last = nullptr;
  };
  device_interval(interval_pool& from, const stream& on, event_pair events) noexcept
      : pool_(from), on_(on), events_(events) {}
  ~device_interval();
  device_interval(const device_interval&) = delete;
  device_interval& operator=(const device_interval&) = delete;

 private:
  friend struct interval_pool;

  interval_pool& pool_;
  const stream on_;
  // Under the pool's mutex:
  event_pair events_;  // none once the time is known
  std::int64_t length_ns_ = device_time_pending;
  bool ended_ = false;
  std::list<std::shared_ptr<device_interval>>::iterator place_;  // in the pool, if it has ended and has events
};

/// Pairs of events that have been made on a device so far, for tests.
[[nodiscard]] std::size_t interval_events_made(device where) noexcept;

}  // namespace ferry::inline v0::detail
