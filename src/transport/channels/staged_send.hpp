#pragma once

// A message with tensors on devices that is being written into a byte stream.

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

/// Produces what follows the message's own bytes: the data of its tensors, and the transfer status. Used by one thread
/// at a time; may be destroyed on any thread at any time. A device failure does not throw: the missing bytes are sent
/// as zeros, and the transfer status reports the failure.
class staged_send {
 public:
  /// Bytes that the messages of one connection have fetched ahead of being written.
  using prefetch_count = std::shared_ptr<std::atomic<std::size_t>>;

  /// Makes its own streams wait for the sender's, and begins to fetch. Throws errc::bad_device, errc::device_failure,
  /// errc::device_timeout, errc::out_of_memory.
  staged_send(const outgoing_message& message, channel_context context, prefetch_count prefetched);
  staged_send(const staged_send&) = delete;
  staged_send& operator=(const staged_send&) = delete;
  ~staged_send();

  /// Whether the work queued before the tensors on the sender's streams has completed. Writing it earlier would block
  /// the messages behind it. Throws errc::device_failure.
  [[nodiscard]] bool begun() const;
  /// begun() becomes true when these have completed.
  [[nodiscard]] const std::vector<stream>& streams() const noexcept { return streams_; }

  /// Fills in what may be written next, in order; returns how many. 0: waiting for a device; channel_context::news is
  /// called later.
  std::size_t collect(std::span<iovec> vectors) noexcept;
  /// Whether collect() would return bytes, judging by what has been fetched so far. Calls no device runtime, unless a
  /// device seems to have exceeded its limit.
  [[nodiscard]] bool ready() const noexcept;
  /// `bytes` bytes have been written.
  void consume(std::size_t bytes) noexcept;
  /// What is written before all that: a byte for each tensor, if the memory of one is lent (frame_direct); else nothing.
  [[nodiscard]] const std::vector<std::byte>& ways() const noexcept { return ways_; }
  /// All bytes that collect() has returned or will.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_ + transfer_status::encoded_size; }
  [[nodiscard]] bool finished() const noexcept { return record_written_ == transfer_status::encoded_size; }

 private:
  struct entry {
    std::unique_ptr<tensor_source> source;
    std::size_t left;
    bool on_device;
  };
  void add(const tensor& packed, device to, const stream& on, const channel_context& context);
  void fetch(std::size_t window);
  void finish_record() noexcept;
  [[nodiscard]] bool begun_note() const noexcept;

  std::shared_ptr<const device_marks> marks_;
  std::vector<stream> streams_;
  std::vector<entry> entries_;
  std::vector<std::byte> ways_;
  std::uint64_t bytes_ = 0;   // of tensors, or of the names of their memory
  std::size_t at_ = 0;        // the first entry that is not completely written
  std::size_t fetch_at_ = 0;  // the first that is not completely fetched
  std::size_t fetched_ = 0;   // bytes of device tensors held in host memory
  std::size_t left_ = 0;      // bytes of tensors that are not yet written
  std::size_t handed_ = 0;    // bytes of the sources that the last collect() returned, before zeros and the record
  prefetch_count prefetched_;
  std::size_t prefetched_here_ = 0;
  std::exception_ptr failure_;
  std::array<std::byte, transfer_status::encoded_size> record_{};
  bool record_made_ = false;
  std::size_t record_written_ = 0;
};

}  // namespace ferry::inline v0::detail
