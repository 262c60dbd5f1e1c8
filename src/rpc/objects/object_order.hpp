#pragma once

// Orders uses of an object's tensors: tracks the device work queued on the object that may not have finished.

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>

#include "../../wire/read_marks.hpp"

namespace ferry::inline v0::detail {

/// Marks the end of the device work that one call, or other code, has queued on an object.
struct object_mark {
  std::vector<event> events;
  std::shared_ptr<const read_marks> reads;  ///< after the copies of its tensors into the answer
};

/// One per object. Code that queues work on the object first makes its streams wait for all existing marks, then leaves
/// its own mark, which replaces them. The object's tensors are unknown here, so marks are recorded in all streams that
/// may have used them. Thread-safe. Functions throw errc::bad_device, errc::device_failure.
class object_order {
 public:
  /// The marks that a user's streams have waited for.
  using marks = std::vector<std::shared_ptr<const object_mark>>;

  /// True while no stream has used the object: there is nothing to order.
  [[nodiscard]] bool idle() const noexcept { return !in_use_.load(std::memory_order_acquire); }
  /// Those on which streams have used it.
  [[nodiscard]] std::vector<device> devices() const;
  /// Records `streams`, and the calling thread's current streams of `devices` that `streams` does not cover, as users
  /// of the object.
  void begin(std::span<const stream> streams, std::span<const device> devices);
  /// `streams`, and the calling thread's current streams of other devices, wait for all marks. If `current_too`, the
  /// current streams also wait where they differ from those of `streams`.
  marks let_streams_wait(std::span<const stream> streams, bool current_too = false) const;
  /// Leaves a mark after the work queued on the same streams so far; it replaces `before`, which they have waited for.
  /// `reads` may be filled later. Strong guarantee.
  void leave_mark(std::span<const stream> streams, const marks& before,
                  std::shared_ptr<const read_marks> reads = nullptr);
  /// Records the calling thread's current streams as users of the object's memory: the memory is reused only after the
  /// work that they have been given by the time the object is destroyed.
  void add_users();

  /// While one exists, memory that the calling thread frees is reused only after all work on the object. Never throws:
  /// failures to order it are logged.
  class end {
   public:
    explicit end(object_order& order) noexcept;
    ~end();
    end(const end&) = delete;
    end& operator=(const end&) = delete;

   private:
    struct streams;
    std::unique_ptr<streams> streams_;
  };

 private:
  void add_devices(std::span<const stream> streams);
  // The streams of `given`, and the current streams of recorded devices that they do not cover.
  [[nodiscard]] std::vector<stream> streams_for(std::span<const stream> given) const;
  [[nodiscard]] marks now() const;

  std::atomic<bool> in_use_{false};
  mutable std::mutex mutex_;  // guards what follows
  std::vector<device> devices_;
  std::vector<stream> users_;
  marks marks_;
};

}  // namespace ferry::inline v0::detail
