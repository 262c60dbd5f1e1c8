#pragma once

// Messages as the agents see them: one contiguous buffer plus tensors that travel beside it.

#include <cstddef>
#include <span>
#include <vector>

#include <ferry/base/bytes.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/wire/frame.hpp>

namespace ferry::inline v0 {

/// A message being built or sent. `bytes` starts with room for the frame header, then come the extension records, then
/// the payload, then (added by finish) the tensor table. The tensors are kept alive until the transport has let go.
class outgoing_message {
 public:
  outgoing_message() { bytes.extend(frame_header::encoded_size); }

  frame_header header;
  byte_buffer bytes;
  std::vector<tensor> tensors;

  /// Appends one extension record; only before the payload is started. Unknown critical records are errors at the peer,
  /// other unknown ones are skipped.
  void add_extension(std::uint16_t type, bool critical, std::span<const std::byte> content);
  /// Where the payload starts; call once all extensions are there.
  void begin_payload() noexcept {
    payload_start_ = bytes.size();
    table_start_ = 0;
  }
  /// Drops what begin_payload() was followed by (an encoder threw), so that another payload can be written.
  void discard_payload() noexcept {
    bytes.truncate(payload_start_);
    tensors.clear();
    table_start_ = 0;
  }
  /// Packs the tensors (a view becomes its visible elements; foreign memory without an owner is copied), writes the
  /// tensor table, fills in the sizes and encodes the header. May be called again. Throws errc::limit_exceeded, errc::bad_device.
  void finish();

  /// What lies behind the extension records, the tensor table excluded.
  [[nodiscard]] std::span<std::byte> payload() noexcept {
    return {bytes.data() + payload_start_, (table_start_ != 0 ? table_start_ : bytes.size()) - payload_start_};
  }
  /// How many bytes it will be, or is; until finish() without its tensor table.
  [[nodiscard]] std::uint64_t size() const noexcept { return bytes.size() + (tensors.empty() ? 0 : tensor_size()); }
  /// Another message with the same content; the tensors are shared.
  [[nodiscard]] outgoing_message copy() const;

 private:
  [[nodiscard]] std::uint64_t tensor_size() const noexcept;

  std::size_t payload_start_ = frame_header::encoded_size;
  std::size_t table_start_ = 0;  // once finished
};

/// A message that has arrived. The spans point into `storage`.
struct inbound_message {
  frame_header header;
  shared_block storage;
  std::span<const std::byte> extensions;
  std::span<const std::byte> payload;
  std::vector<tensor> tensors;
};

/// One extension record.
struct extension_record {
  std::uint16_t type = 0;
  bool critical = false;
  std::span<const std::byte> content;
};

/// Takes the next record off `records`; false at the end. Throws errc::truncated or errc::malformed.
bool next_extension(std::span<const std::byte>& records, extension_record& record);
/// Goes through `records`, of which this version knows no type. Throws as next_extension does, and errc::unknown_extension
/// if one is critical.
void check_extensions(std::span<const std::byte> records);

/// Checks a tensor table against `limits` and the header's tensor_count and tensor_bytes, and allocates the tensors it
/// describes, in order, uninitialised: the transport receives straight into them.
std::vector<tensor> decode_tensor_table(const frame_header& header, std::span<const std::byte> table,
                                        const wire_limits& limits);

/// For a transport, once the data of all tensors has arrived: throws errc::malformed if an element of a bool tensor in
/// CPU memory is neither 0 nor 1, which no program may read.
void check_received(std::span<const tensor> tensors);

}  // namespace ferry::inline v0
