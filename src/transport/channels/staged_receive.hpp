#pragma once

// The tensors of a message that arrives over a byte stream and has to do with devices, at either end.

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ferry/transport/channel.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0::detail {

/// Takes what follows the body of the message: the data of its tensors, and the transfer status if it has one. What keeps tensors
/// from arriving is a failure of this message: its bytes are taken all the same, and thrown away. Not thread-safe.
class staged_receive {
 public:
  /// Takes memory for the first tensor; for each other one when its turn comes. `takes` says whether they may arrive on a device. Throws std::bad_alloc.
  template <class Takes>
  staged_receive(const frame_header& header, std::vector<tensor_description> tensors, channel_context context,
                 const Takes& takes)
      : descriptions_(std::move(tensors)),
        context_(std::move(context)),
        has_record_((header.flags & frame_outcome) != 0) {
    for (const tensor_description& each : descriptions_) {
      if (each.where.is_cpu() || failure_) continue;
      if (!takes(each.where)) refuse(each.where);
    }
    begin();
  }

  /// Where the next bytes go. Empty: complete, or not before a device has got further, of which there will be news.
  std::span<std::byte> room();
  /// So many have arrived there. Throws std::bad_alloc.
  void commit(std::size_t bytes);
  [[nodiscard]] bool complete() const noexcept { return at_ == parts_.size() && record_left_ == 0; }
  /// Once complete: tensors, streams and failure go to the message. Throws what check_received() throws.
  void finish(inbound_message& message);

 private:
  struct part {
    std::unique_ptr<tensor_sink> sink;  // null: thrown away
    std::size_t left;
  };
  void refuse(device where);
  void begin();
  void advance();
  void receive_into(const tensor_description& next);
  void fail() noexcept;
  const stream& arrival(device where);

  const std::vector<tensor_description> descriptions_;
  const channel_context context_;
  const bool has_record_;
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
