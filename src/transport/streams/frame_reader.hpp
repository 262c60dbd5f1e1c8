#pragma once

// Splits a byte stream into messages, receiving large parts directly into their final memory.

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <sys/uio.h>

#include <ferry/base/bytes.hpp>
#include <ferry/wire/limits.hpp>
#include <ferry/wire/message.hpp>

#include "../channels/staged_receive.hpp"

namespace ferry::inline v0::detail {

/// Receives the complete messages.
class message_sink {
 public:
  virtual void on_frame(inbound_message&& message) = 0;
  /// True: begin no further message and allocate no memory for one.
  [[nodiscard]] virtual bool paused() const noexcept { return false; }
  /// The context for tensors that arrive on devices; null: they are not supported.
  [[nodiscard]] virtual const channel_context* channels() const noexcept { return nullptr; }
  /// Called only if channels() is not null: connection_receiver::takes_tensors_on().
  [[nodiscard]] virtual bool takes_tensors_on(device where) const noexcept {
    (void)where;
    return false;
  }

 protected:
  ~message_sink() = default;
};

/// Not thread-safe. Between prepare() and commit() the caller fills the given memory, front to back.
class frame_reader {
 public:
  static constexpr std::size_t max_vectors = 10;

  explicit frame_reader(const wire_limits& limits) : limits_(limits) {}

  /// The buffers for the next bytes. Returns the number of vectors filled in; `total` is their size. None if it is
  /// stalled.
  std::size_t prepare(std::array<iovec, max_vectors>& vectors, std::size_t& total);
  /// `count` bytes have been received there. Throws what the checks of the wire format throw, or std::bad_alloc;
  /// afterwards the stream is unusable.
  void commit(std::size_t count, message_sink& sink);
  /// The sink was paused and complete messages may remain in the block, or there is no room for tensors until a device
  /// has made progress (channel_context::news). Call resume() before receiving more.
  [[nodiscard]] bool stalled() const noexcept { return stalled_; }
  /// Throws as commit() does.
  void resume(message_sink& sink);
  /// The stream has ended: releases the message that has begun, and its tensors.
  void abandon() noexcept {
    message_ = {};
    table_ = {};
    staged_.reset();
    block_ = {};
    begin_ = end_ = 0;
    phase_ = phase::header;
  }
  /// True in the middle of a message: the end of the stream now means that it was truncated.
  [[nodiscard]] bool mid_message() const noexcept { return phase_ != phase::header || begin_ != end_; }

 private:
  enum class phase { header, body, tensors, staged };
  static constexpr std::size_t block_bytes = std::size_t{64} * 1024;
  static constexpr std::size_t large_tensors =
      std::size_t{16} * 1024;  // tensor bytes above which the next message is expected to be large too
  static constexpr std::size_t header_read_ahead = 1024;  // bytes then read before the header is known
  static constexpr std::size_t body_step = std::size_t{64} * 1024 * 1024;
  // Tensors are allocated while those before them miss no more bytes than this: a tensor table alone, which may promise
  // thousands of large ones, allocates one of them.
  static constexpr std::size_t allocated_ahead = std::size_t{256} * 1024;
  static constexpr std::size_t tensor_cost = 256;      // counted for a tensor besides its data
  static constexpr std::size_t tensors_at_once = 256;  // the first capacity of the list

  void parse(message_sink& sink);
  bool take_small_frame(message_sink& sink);
  void start_large_body();
  void finish_body(std::byte* body, const message_sink& sink);
  void allocate_tensor();
  bool take_tensor_bytes();
  bool take_staged_bytes();
  void make_room(std::size_t needed);
  std::byte* block_at(std::size_t offset) noexcept { return block_.data() + offset; }

  wire_limits limits_;
  phase phase_ = phase::header;
  shared_block block_;  // bytes [begin_, end_) are not parsed yet
  std::size_t begin_ = 0;
  std::size_t end_ = 0;

  inbound_message message_;
  std::size_t body_filled_ = 0;
  std::span<const std::byte> table_;  // the entries of the tensors that are not allocated yet; in message_.storage
  std::size_t tensor_ = 0;            // being received; allocated, unless it comes next
  bool after_large_tensors_ = false;
  bool stalled_ = false;
  std::size_t tensor_filled_ = 0;           // of tensor_
  std::unique_ptr<staged_receive> staged_;  // of a message that involves devices
  bool straight_ = false;                   // its bytes are received directly into place, not into the block
};

}  // namespace ferry::inline v0::detail
