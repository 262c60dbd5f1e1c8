#pragma once

// When the tensors of an object may be used: which of the work that devices were given on it they have yet to do.

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>

#include "../../wire/read_marks.hpp"

namespace ferry::inline v0::detail {

/// The end of what one call, or whoever else, has queued on an object.
struct object_mark {
  std::vector<event> events;
  std::shared_ptr<const read_marks> reads;  ///< behind the copies of its tensors in the answer
};

/// One of each object. Whoever queues work on it has streams that wait for all marks there are, and leaves a mark of its own,
/// which takes their place. Nothing is known of the object's tensors: the marks are in all streams that may have got to do
/// with them. Thread-safe. Functions throw errc::bad_device, errc::device_failure.
class object_order {
 public:
  /// What somebody's streams have waited for.
  using marks = std::vector<std::shared_ptr<const object_mark>>;

  /// There is nothing to order: the object has had to do with no streams.
  [[nodiscard]] bool idle() const noexcept { return !in_use_.load(std::memory_order_acquire); }
  /// Besides those of `streams`, the calling thread's current streams of these devices have to do with the object.
  void begin(std::span<const stream> streams, std::span<const device> devices);
  /// `streams`, and the calling thread's current streams of other devices, wait for all marks. If `current_too`, so do the
  /// current ones where those of `streams` are others.
  marks let_streams_wait(std::span<const stream> streams, bool current_too = false) const;
  /// Leaves a mark behind what the same streams were given so far, instead of `before`, which they have waited for.
  /// `reads` may be filled later. If it throws, nothing has changed.
  void leave_mark(std::span<const stream> streams, const marks& before,
                  std::shared_ptr<const read_marks> reads = nullptr);
  /// The calling thread's current streams use the object's memory: it is used again only after what they have been given by the
  /// time the object goes.
  void add_users();

  /// While one lives, what the calling thread destroys is given back after all work on the object. Never throws: what cannot
  /// be ordered is logged.
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
  void learn(std::span<const stream> streams);
  // Those of `given`, and current ones of the devices that are not among theirs.
  [[nodiscard]] std::vector<stream> streams_for(std::span<const stream> given) const;
  [[nodiscard]] marks now() const;

  std::atomic<bool> in_use_{false};
  mutable std::mutex mutex_;  // guards what follows
  std::vector<device> devices_;
  std::vector<stream> users_;
  marks marks_;
};

}  // namespace ferry::inline v0::detail
