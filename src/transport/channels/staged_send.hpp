#pragma once

// A message with tensors on devices, on its way into a byte stream.

#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include <sys/uio.h>

#include <ferry/device/stream.hpp>
#include <ferry/transport/channel.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0::detail {

/// Gives what follows the message's own bytes: the data of its tensors, and the transfer status. Used by one thread at a time;
/// may be destroyed on any, at any time. A failure of a device does not throw: the bytes that are missing are zeros then, and the
/// record says so.
class staged_send {
 public:
  /// What the messages of one connection have fetched before it was their turn.
  using prefetch_count = std::shared_ptr<std::atomic<std::size_t>>;

  /// Queues what lets the streams of its own wait for the sender's, and begins to fetch. Throws errc::bad_device,
  /// errc::device_failure, errc::out_of_memory.
  staged_send(const outgoing_message& message, channel_context context, prefetch_count prefetched);
  staged_send(const staged_send&) = delete;
  staged_send& operator=(const staged_send&) = delete;
  ~staged_send();

  /// Whether the work is done that comes before the tensors on the sender's streams. Until then its turn would keep others
  /// waiting. Throws errc::device_failure.
  [[nodiscard]] bool begun() const;
  /// When these are done, it has begun.
  [[nodiscard]] const std::vector<stream>& streams() const noexcept { return streams_; }

  /// Fills in what may be written next, in order; returns how many. None: a device has to get further first, and there will
  /// be news.
  std::size_t collect(std::span<iovec> vectors) noexcept;
  /// Whether there is something, of what has been asked of the device so far. Calls no runtime of devices.
  [[nodiscard]] bool ready() const noexcept;
  /// So many bytes have been written.
  void consume(std::size_t bytes) noexcept;
  [[nodiscard]] bool finished() const noexcept { return record_written_ == transfer_status::encoded_size; }

 private:
  struct entry {
    std::unique_ptr<tensor_source> source;
    std::size_t left;
    bool on_device;
  };
  void fetch(std::size_t window);
  void finish_record() noexcept;

  std::shared_ptr<const device_marks> marks_;
  std::vector<stream> streams_;
  std::vector<entry> entries_;
  std::size_t at_ = 0;        // the first entry that is not written
  std::size_t fetch_at_ = 0;  // the first that is not fetched
  std::size_t fetched_ = 0;   // bytes of devices that are held
  std::size_t left_ = 0;      // bytes of tensors that are not written
  prefetch_count prefetched_;
  std::size_t prefetched_here_ = 0;
  std::exception_ptr failure_;
  std::array<std::byte, transfer_status::encoded_size> record_{};
  bool record_made_ = false;
  std::size_t record_written_ = 0;
};

}  // namespace ferry::inline v0::detail
