#pragma once

// Messages as agents handle them: one contiguous buffer plus tensors sent beside it.

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ferry/base/bytes.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/time.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/tensor/dims.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/wire/extension.hpp>
#include <ferry/wire/frame.hpp>

namespace ferry::inline v0 {

namespace detail {
class handle_writer;
class handle_reader;
struct device_marks;
class read_marks;
}  // namespace detail

/// A message being built or sent. `bytes` starts with room for the frame header, then come the payload, then the
/// extension records, then (added by finish) the tensor table. The tensors are kept alive until the transport has
/// released them. Not thread-safe.
class outgoing_message {
 public:
  outgoing_message() { bytes.extend(frame_header::encoded_size); }

  frame_header header;
  byte_buffer bytes;
  std::vector<tensor> tensors;
  /// The device on which each tensor arrives; empty: the CPU, for all of them.
  std::vector<device> targets;
  /// A transport that copies tensors from device to device marks here when it has read them; null: not needed.
  std::shared_ptr<detail::read_marks> reads;
  /// Receives what values send beside the payload (archive.hpp), while they are encoded.
  detail::handle_writer* handles = nullptr;

  /// Adds one extension record behind the payload: at any time after the payload has been written and before finish().
  /// Nothing may be appended to the payload afterwards: the next record and finish() then throw. Records keep their
  /// order, several may have one type (extension.hpp has the ranges of types). A peer that does not know the type
  /// refuses the message if the record is critical, else skips the record.
  /// Throws errc::invalid_argument if the type is 0, after finish(), within another record, or if the payload has grown
  /// since the first record; errc::limit_exceeded for more than 2^32 - 17 bytes.
  void add_extension(std::uint16_t type, bool critical, std::span<const std::byte> content);
  /// Of the records so far, with their headers.
  [[nodiscard]] std::size_t extension_bytes() const noexcept { return records_end_ - records_start_; }
  /// The same without a buffer of the caller's: append the content to the returned buffer, which is `bytes`, then call
  /// end_extension(). Throws as add_extension() does.
  byte_buffer& begin_extension(std::uint16_t type, bool critical);
  /// Throws errc::invalid_argument if no record has been begun, and errc::limit_exceeded as add_extension() does.
  void end_extension();
  /// Drops payload, records and tensors (an encoder threw), so that another payload can be written.
  void discard_payload() noexcept;
  /// Packs the tensors (a view becomes its visible elements; foreign memory without an owner is copied), writes the
  /// tensor table, fills in the sizes and encodes the header. Marks on the calling thread's current streams when the
  /// tensors that are on devices may be read (at the first time, if called again): the message may then be sent by any
  /// thread.
  /// Throws errc::limit_exceeded, errc::bad_device, errc::device_failure; errc::invalid_argument if bytes were appended
  /// behind the extension records, or one was not ended.
  void finish();
  /// Once finished: a tensor is on a device, or is to arrive on one. Only some connections carry such messages.
  [[nodiscard]] bool on_devices() const noexcept { return on_devices_; }
  /// When its tensors may be read; null: at once.
  [[nodiscard]] const detail::device_marks* marks() const noexcept { return marks_.get(); }
  [[nodiscard]] const std::shared_ptr<const detail::device_marks>& shared_marks() const noexcept { return marks_; }
  /// There are tensors, and they keep the memory of their elements: the values that were encoded need not exist any more.
  [[nodiscard]] bool keeps_its_tensors() const noexcept;
  /// Once finished: removes the tensors; the receiver is notified that they could not be read. Only for peers that
  /// support device tensors (feature_device_tensors).
  void become_void();

  /// The bytes between the header and the extension records.
  [[nodiscard]] std::span<std::byte> payload() noexcept {
    return {bytes.data() + frame_header::encoded_size, payload_bytes()};
  }
  [[nodiscard]] std::size_t payload_bytes() const noexcept {
    const std::size_t end = records_start_ != 0 ? records_start_ : table_start_ != 0 ? table_start_ : bytes.size();
    return end - frame_header::encoded_size;
  }
  /// Its final size in bytes; until finish() without its tensor table.
  [[nodiscard]] std::uint64_t size() const noexcept { return bytes.size() + (tensors.empty() ? 0 : tensor_size()); }
  /// Another message with the same content; the tensors are shared.
  [[nodiscard]] outgoing_message copy() const;

 private:
  [[nodiscard]] std::uint64_t tensor_size() const noexcept;
  void check_records() const;
  [[nodiscard]] bool may_add(std::uint16_t type) const noexcept;
  void refuse_to_add(std::uint16_t type) const;  // throws why

  // Offsets in `bytes`; 0: not yet.
  std::size_t records_start_ = 0;
  std::size_t records_end_ = 0;
  std::size_t open_record_ = 0;  // begun and not ended
  std::size_t table_start_ = 0;  // once finished
  std::uint32_t record_count_ = 0;
  bool on_devices_ = false;
  std::shared_ptr<const detail::device_marks> marks_;
};

/// A message that has arrived. The spans point into `storage`.
struct inbound_message {
  frame_header header;
  shared_block storage;
  std::span<const std::byte> extensions;
  std::span<const std::byte> payload;
  std::vector<tensor> tensors;
  /// What arrived beside the payload, for the values that refer to it.
  std::shared_ptr<const detail::handle_reader> handles = {};
  /// The streams in whose order its tensors are valid: one for each device that has streams.
  std::vector<stream> streams = {};
  /// Why the tensors could not be received although the rest was. The message must be treated as failed.
  std::exception_ptr failure = {};
  /// When its last bytes were read; unset: a moment ago. Reading the clock costs more than most of what is done with it.
  clock::time_point arrived = {};
  [[nodiscard]] clock::time_point arrival() const noexcept {
    return arrived == clock::time_point{} ? clock::now() : arrived;
  }
};

/// One entry of a tensor table: a tensor that is about to arrive.
struct tensor_description {
  ferry::dtype dtype{};
  device where;  ///< as given by the sender; need not exist
  dims shape;
  dims strides;
  std::uint64_t bytes = 0;  ///< of its data
};
/// Checks a tensor table against `limits` and the header's tensor_count and tensor_bytes. Allocates nothing for the
/// tensors.
/// Throws errc::malformed, errc::truncated, errc::limit_exceeded.
std::vector<tensor_description> describe_tensors(const frame_header& header, std::span<const std::byte> table,
                                                 const wire_limits& limits);

/// Follows the tensor data of a message whose tensors come from devices (frame_outcome): whether the data are the
/// contents of the sender's tensors. If not, the data are meaningless and the message has failed.
struct transfer_status {
  static constexpr std::size_t encoded_size = 128;
  static constexpr std::size_t longest_text = encoded_size - 8;
  errc code{};       ///< 0: success
  std::string text;  ///< the reason, cut at longest_text bytes

  void encode(std::byte* out) const noexcept;
  /// A code that is unknown is errc::device_failure. Throws errc::malformed.
  static transfer_status decode(const std::byte* in);
};

/// Checks a tensor table against `limits` and the header's tensor_count and tensor_bytes, and allocates the tensors it
/// describes, in order, uninitialised: the transport receives directly into them. For transports that receive on the
/// CPU only: throws errc::bad_device for other tensors, and what describe_tensors() throws.
std::vector<tensor> decode_tensor_table(const frame_header& header, std::span<const std::byte> table,
                                        const wire_limits& limits);

/// For a transport, once the data of all tensors has arrived: throws errc::malformed if an element of a bool tensor in
/// CPU memory is neither 0 nor 1, which no program may read.
void check_received(std::span<const tensor> tensors);

}  // namespace ferry::inline v0
