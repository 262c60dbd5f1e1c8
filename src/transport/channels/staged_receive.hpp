#pragma once

// The tensors of a message that arrives over a byte stream and involves devices at either end.

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ferry/transport/channel.hpp>
#include <ferry/wire/message.hpp>

#include "shared_channel.hpp"

namespace ferry::inline v0::detail {

/// Receives what follows the body of the message: the data of its tensors, and the transfer status if it has one. An
/// error that keeps tensors from arriving fails this message only: its bytes are still received, and discarded. Not
/// thread-safe.
class staged_receive {
 public:
  /// Allocates memory for the first tensor, and for each other one when it is next. `takes` says whether tensors may
  /// arrive on a device. Throws std::bad_alloc.
  template <class Takes>
  staged_receive(const frame_header& header, std::vector<tensor_description> tensors, channel_context context,
                 const Takes& takes)
      : descriptions_(std::move(tensors)),
        context_(std::move(context)),
        has_record_((header.flags & frame_outcome) != 0),
        ways_((header.flags & frame_direct) != 0 ? header.tensor_count : 0) {
    for (const tensor_description& each : descriptions_) {
      if (each.where.is_cpu() || failure_) continue;
      if (!takes(each.where)) refuse(each.where);
    }
    begin();
  }

  /// The buffer for the next bytes. Empty: complete, or waiting for a device (channel_context::news is called later).
  std::span<std::byte> room();
  /// `bytes` bytes have been received into room(). Throws std::bad_alloc, errc::malformed.
  void commit(std::size_t bytes);
  [[nodiscard]] bool complete() const noexcept {
    return ways_read_ == ways_.size() && at_ == parts_.size() && record_left_ == 0;
  }
  /// Once complete: moves tensors, streams and failure to the message. Throws what check_received() throws.
  void finish(inbound_message& message);

 private:
  struct part {
    std::unique_ptr<tensor_sink> sink;  // null: its bytes are discarded
    std::size_t left;
    bool direct = false;                // what arrives is the name of the sender's memory
    adopting_sink* adopting = nullptr;  // the sink, if it makes the tensor
  };
  void refuse(device where);
  void begin();
  void take_ways();
  void advance();
  [[nodiscard]] bool settled();
  void receive_into(const tensor_description& next);
  void fail() noexcept;
  const stream& arrival(device where);

  const std::vector<tensor_description> descriptions_;
  const channel_context context_;
  const bool has_record_;
  std::vector<std::byte> ways_;  // how each tensor comes; empty: as its bytes
  std::size_t ways_read_ = 0;
  std::vector<part> parts_;
  std::vector<tensor> tensors_;
  std::vector<stream> streams_;
  std::size_t at_ = 0;
  std::vector<std::byte> unwanted_;
  std::exception_ptr failure_;
  std::array<std::byte, transfer_status::encoded_size> record_{};
  std::size_t record_left_ = 0;
};

}  // namespace ferry::inline v0::detail
