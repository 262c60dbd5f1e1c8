#pragma once

// Memory that was given up while streams used it.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {

struct device_state;

/// The blocks of one device that were given up, each with marks in the streams that use it, in no order: a block is freed when
/// its own marks are reached, whatever the streams of others do. The marks are looked at when memory is allocated and given
/// up, a few at a time; no thread waits for them, except an allocation that would fail. docs/decisions/device_memory.md has
/// the reasons. Thread-safe.
class parked_blocks {
 public:
  struct block {
    void* memory = nullptr;
    std::size_t bytes = 0;
    std::vector<event> marks;
    std::vector<stream> captured;  // streams that use it, and were being captured: they have no marks yet
  };

  /// Makes what park() needs from the device. Throws errc::device_failure.
  void warm_up(device_state& state);
  /// Throws errc::device_failure.
  void park(device_state& state, block&& given_up);
  /// Looks at a few of them, and frees those that are done.
  void reclaim_some(device_state& state) noexcept;
  /// Looks at all.
  void reclaim_all(device_state& state) noexcept;
  /// The same, and what streams have freed that are done now can be used by any stream then, and given back to the device.
  void reclaim_at_once(device_state& state) noexcept;
  /// Memory for a stream; waits for blocks that are parked where there would be none. Throws what the device's allocate()
  /// throws.
  void* allocate(device_state& state, const stream& on, std::size_t bytes);

  [[nodiscard]] std::uint64_t blocks() const noexcept { return blocks_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t waits() const noexcept { return waits_.load(std::memory_order_relaxed); }

 private:
  enum class outcome : unsigned char { in_use, freed, lost };
  outcome look_at(device_state& state, block& one) noexcept;
  void reclaim(device_state& state, std::size_t most) noexcept;
  void follow_frees(const stream& on);
  void* allocate_when_freed(device_state& state, const stream& on, std::size_t bytes);

  std::mutex mutex_;
  std::vector<block> all_;
  std::size_t next_ = 0;        // where the next look begins
  void* freeing_on_ = nullptr;  // a stream that has nothing else to do: what is freed there is free at once
  // A stream gets what another one freed at little cost if it has waited for an event that was recorded there since. Streams that
  // have are remembered in the place that their handle says; one that another has pushed out waits again.
  struct follower {
    void* stream = nullptr;
    std::uint64_t frees = 0;  // up to which it has waited
  };
  std::array<follower, 256> followers_{};
  event freed_;                    // recorded on freeing_on_
  std::uint64_t freed_marks_ = 0;  // how many frees it marks
  std::atomic<std::uint64_t> blocks_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> frees_{0};
  std::atomic<std::uint64_t> waits_{0};
};

/// Says, once for each device, that memory which a failed device may still use is not used again.
void tell_leak(device_state& state, std::size_t bytes, const char* why) noexcept;

}  // namespace ferry::inline v0::detail
