#include <ferry/wire/frame.hpp>

#include <string>

#include <ferry/base/error.hpp>
#include <ferry/wire/little_endian.hpp>

namespace ferry::inline v0 {
namespace {

using detail::load_le;
using detail::store_le;

// docs/protocol.md, "Frame header".
enum offset : std::size_t {
  kind_at = 0,
  flags_at = 1,
  tensor_count_at = 2,
  extension_bytes_at = 4,
  call_id_at = 8,
  payload_bytes_at = 16,
  tensor_bytes_at = 24,
  table_bytes_at = 32,
  code_at = 36,
  method_at = 40,
  signature_at = 48,
  timeout_at = 56,
};
static_assert(timeout_at + sizeof(std::uint64_t) == frame_header::encoded_size);

// Of one tensor in the table: see message.cpp.
constexpr std::uint64_t table_entry_fixed = 8;
constexpr std::uint64_t table_entry_per_axis = 16;

[[noreturn]] void refuse(errc code, const std::string& text) { throw_error(code, "frame header: " + text); }

void check_limit(const char* what, std::uint64_t value, std::uint64_t limit, const char* option) {
  if (value <= limit) return;
  refuse(errc::limit_exceeded, std::string(what) + " is " + std::to_string(value) + ", the limit is " +
                                   std::to_string(limit) + " (wire_limits::" + option + ")");
}

}  // namespace

void frame_header::encode(std::byte* out) const noexcept {
  store_le(out + kind_at, kind);
  store_le(out + flags_at, flags);
  store_le(out + tensor_count_at, tensor_count);
  store_le(out + extension_bytes_at, extension_bytes);
  store_le(out + call_id_at, call_id);
  store_le(out + payload_bytes_at, payload_bytes);
  store_le(out + tensor_bytes_at, tensor_bytes);
  store_le(out + table_bytes_at, table_bytes);
  store_le(out + code_at, code);
  store_le(out + method_at, method);
  store_le(out + signature_at, signature);
  store_le(out + timeout_at, timeout_us);
}

frame_header frame_header::decode(const std::byte* in, const wire_limits& limits) {
  const auto kind_number = load_le<std::uint8_t>(in + kind_at);
  if (kind_number < static_cast<std::uint8_t>(frame_kind::request) ||
      kind_number > static_cast<std::uint8_t>(frame_kind::control)) {
    refuse(errc::malformed, "unknown kind " + std::to_string(kind_number));
  }
  frame_header header;
  header.kind = static_cast<frame_kind>(kind_number);
  header.flags = load_le<std::uint8_t>(in + flags_at);
  header.tensor_count = load_le<std::uint16_t>(in + tensor_count_at);
  header.extension_bytes = load_le<std::uint32_t>(in + extension_bytes_at);
  header.call_id = load_le<std::uint64_t>(in + call_id_at);
  header.payload_bytes = load_le<std::uint64_t>(in + payload_bytes_at);
  header.tensor_bytes = load_le<std::uint64_t>(in + tensor_bytes_at);
  header.table_bytes = load_le<std::uint32_t>(in + table_bytes_at);
  header.code = load_le<std::uint32_t>(in + code_at);
  header.method = load_le<std::uint64_t>(in + method_at);
  header.signature = load_le<std::uint64_t>(in + signature_at);
  header.timeout_us = load_le<std::uint64_t>(in + timeout_at);

  if ((header.flags & ~frame_known_flags) != 0) {
    refuse(errc::malformed, "unknown flags " + std::to_string(header.flags));
  }
  if ((header.flags & ~frame_outcome) != 0 && header.kind != frame_kind::request) {
    refuse(errc::malformed, "request flags on a frame of kind " + std::to_string(kind_number));
  }
  if ((header.flags & frame_no_deadline) != 0 && header.timeout_us != 0) {
    refuse(errc::malformed, "a timeout together with the flag for none");
  }
  check_limit("the size of the extension records", header.extension_bytes, limits.max_extension_bytes,
              "max_extension_bytes");
  if (header.extension_bytes % 8 != 0) refuse(errc::malformed, "extension records that do not end on 8 bytes");
  check_limit("the number of tensors", header.tensor_count, limits.max_tensors, "max_tensors");
  // Each is compared on its own first, so that the sums cannot wrap.
  check_limit("the size of the payload", header.payload_bytes, limits.max_message_bytes, "max_message_bytes");
  check_limit("the size of the tensors", header.tensor_bytes, limits.max_message_bytes - header.payload_bytes,
              "max_message_bytes, less the payload");
  const std::uint64_t count = header.tensor_count;
  if (header.table_bytes < count * table_entry_fixed ||
      header.table_bytes > count * (table_entry_fixed + table_entry_per_axis * limits.max_rank)) {
    refuse(errc::malformed,
           "a table of " + std::to_string(header.table_bytes) + " bytes for " + std::to_string(count) + " tensors");
  }
  if (count == 0 && header.tensor_bytes != 0) refuse(errc::malformed, "tensor data without tensors");
  return header;
}

}  // namespace ferry::inline v0
