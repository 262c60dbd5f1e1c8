#pragma once

// The parts of the channel cuda_staged that are used elsewhere.

#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ferry/base/time.hpp>
#include <ferry/device/stream.hpp>

#include "../../device/memory/pinned_memory.hpp"

namespace ferry::inline v0::detail {

/// The copies under way between devices and page-locked memory, in one direction of one connection: bounds the memory of
/// those that are received, and notices those that make no progress. A stream on which none of the copies under way
/// completes for the limit is stalled, a tenth of the limit where another stream of its device is stalled and no copy
/// of that device has completed since. Its memory stays with the copies until they end, and no longer counts against
/// other transfers. Thread-safe.
class staging_ring {
 public:
  enum class direction { to_device, from_device };
  /// `peer` is what errors say of the other end; may be empty.
  staging_ring(std::chrono::milliseconds limit, direction way, std::string peer = {})
      : limit_(limit), way_(way), peer_(std::move(peer)) {}

  /// A block for a copy of `bytes` bytes that will be queued on `on`; null if the transfers have reached their limit.
  /// Throws errc::out_of_memory, errc::device_failure, and errc::device_timeout if `on` is stalled and holds all that it
  /// may.
  std::unique_ptr<pinned_block> take(const stream& on, std::size_t bytes);
  /// Whether one more copy may be queued on `on`, for transfers that bound their memory themselves: at most one at a time
  /// where a stream of the device is stalled. Throws errc::device_timeout if `on` is stalled.
  bool may_queue(const stream& on);
  /// A copy between a device and a block of `bytes` bytes has been queued on `on`. True if the next take() may be refused:
  /// the caller then ensures that its channel_context::news is called regularly until the copy has ended. Throws
  /// errc::device_failure.
  bool queued(const stream& on, std::size_t bytes);
  /// Whether copies are under way on `on`.
  bool under_way(const stream& on);
  /// Throws errc::device_timeout if `on` is stalled. Asks the device only if it seems so.
  void check(const stream& on);
  /// One of the pool's streams, one that is not stalled if there is such. Throws what pool_stream() throws.
  stream pick(device where);

 private:
  struct entry {
    event end;
    std::size_t bytes;
  };
  // The copies under way on one stream, which complete in order.
  struct lane {
    stream on;
    std::deque<entry> copies = {};
    std::size_t bytes = 0;
    clock::time_point since = {};  // of the last copy that completed; if none has, the first one was queued
  };
  struct progress {
    device where;
    clock::time_point last;  // when a copy completed
  };
  lane* find(const stream& on) noexcept;
  void reap(lane& of, clock::time_point now) noexcept;
  void reap(clock::time_point now) noexcept;
  [[nodiscard]] bool exceeds(const lane& one, std::chrono::nanoseconds limit, clock::time_point now) const noexcept {
    return !one.copies.empty() && now - one.since >= limit;
  }
  [[nodiscard]] bool device_stalls(device where, const lane* besides, clock::time_point now) const noexcept;
  [[nodiscard]] bool stalled(const lane& one, clock::time_point now) const noexcept;
  bool stalled_for_certain(const stream& on);
  [[noreturn]] void give_up(const stream& on) const;

  const std::chrono::nanoseconds limit_;
  const direction way_;
  const std::string peer_;
  std::mutex mutex_;  // guards what follows
  std::list<lane> lanes_;
  std::vector<progress> progress_;  // of each device
};

}  // namespace ferry::inline v0::detail
