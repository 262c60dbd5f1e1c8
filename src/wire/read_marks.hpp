#pragma once

// When the tensors of a message have been read: marks behind the copies made of them, for the sender.

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {

/// Filled by the transport, before the message can be answered. Thread-safe.
class read_marks {
 public:
  /// Copies of tensors on `sources` have been queued on `on`; its work so far is marked.
  void add(std::vector<device> sources, const stream& on);
  /// Makes the calling thread's current streams of the sources, or those of these devices among `streams`, wait for the
  /// copies queued so far; the host does not wait. Throws errc::device_failure.
  void let_streams_wait(std::span<const stream> streams = {}) const;
  /// The devices from which tensors have been read so far.
  [[nodiscard]] std::vector<device> sources() const;

 private:
  struct entry {
    std::vector<device> sources;
    event mark;
  };
  mutable std::mutex mutex_;
  std::vector<entry> entries_;
};

/// The stream of `where` among `streams`, else the calling thread's current one. Throws errc::bad_device.
stream stream_among(std::span<const stream> streams, device where);

}  // namespace ferry::inline v0::detail
