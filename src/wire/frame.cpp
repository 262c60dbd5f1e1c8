#include <ferry/wire/frame.hpp>

#include <string>

#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>

namespace ferry::inline v0 {
namespace detail {
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

// Per tensor in the table: see message.cpp.
constexpr std::uint64_t table_entry_fixed = 8;
constexpr std::uint64_t table_entry_per_axis = 16;

[[noreturn]] void refuse(errc code, const std::string& text) { throw_error(code, "frame header: " + text); }

void check_limit(const char* what, std::uint64_t value, std::uint64_t limit, const char* option) {
  if (value <= limit) return;
  refuse(errc::limit_exceeded, std::string(what) + " is " + std::to_string(value) + ", the limit is " +
                                   std::to_string(limit) + " (wire_limits::" + option + ")");
}

}  // namespace
}  // namespace detail

void frame_header::encode(std::byte* out) const noexcept {
  detail::store_le(out + detail::kind_at, kind);
  detail::store_le(out + detail::flags_at, flags);
  detail::store_le(out + detail::tensor_count_at, tensor_count);
  detail::store_le(out + detail::extension_bytes_at, extension_bytes);
  detail::store_le(out + detail::call_id_at, call_id);
  detail::store_le(out + detail::payload_bytes_at, payload_bytes);
  detail::store_le(out + detail::tensor_bytes_at, tensor_bytes);
  detail::store_le(out + detail::table_bytes_at, table_bytes);
  detail::store_le(out + detail::code_at, code);
  detail::store_le(out + detail::method_at, method);
  detail::store_le(out + detail::signature_at, signature);
  detail::store_le(out + detail::timeout_at, timeout_us);
}

frame_header frame_header::decode(const std::byte* in, const wire_limits& limits) {
  const auto kind_number = detail::load_le<std::uint8_t>(in + detail::kind_at);
  if (kind_number < static_cast<std::uint8_t>(frame_kind::request) ||
      kind_number > static_cast<std::uint8_t>(frame_kind::control)) {
    detail::refuse(errc::malformed, "unknown kind " + std::to_string(kind_number));
  }
  frame_header header;
  header.kind = static_cast<frame_kind>(kind_number);
  header.flags = detail::load_le<std::uint8_t>(in + detail::flags_at);
  header.tensor_count = detail::load_le<std::uint16_t>(in + detail::tensor_count_at);
  header.extension_bytes = detail::load_le<std::uint32_t>(in + detail::extension_bytes_at);
  header.call_id = detail::load_le<std::uint64_t>(in + detail::call_id_at);
  header.payload_bytes = detail::load_le<std::uint64_t>(in + detail::payload_bytes_at);
  header.tensor_bytes = detail::load_le<std::uint64_t>(in + detail::tensor_bytes_at);
  header.table_bytes = detail::load_le<std::uint32_t>(in + detail::table_bytes_at);
  header.code = detail::load_le<std::uint32_t>(in + detail::code_at);
  header.method = detail::load_le<std::uint64_t>(in + detail::method_at);
  header.signature = detail::load_le<std::uint64_t>(in + detail::signature_at);
  header.timeout_us = detail::load_le<std::uint64_t>(in + detail::timeout_at);

  if ((header.flags & ~frame_known_flags) != 0) {
    detail::refuse(errc::malformed, "unknown flags " + std::to_string(header.flags));
  }
  if ((header.flags & ~(frame_outcome | frame_direct)) != 0 && header.kind != frame_kind::request) {
    detail::refuse(errc::malformed, "request flags on a frame of kind " + std::to_string(kind_number));
  }
  if ((header.flags & frame_direct) != 0 && ((header.flags & frame_outcome) == 0 || header.tensor_count == 0)) {
    detail::refuse(errc::malformed, "the flag for memory that is lent, without tensors or without a transfer status");
  }
  if ((header.flags & frame_no_deadline) != 0 && header.timeout_us != 0) {
    detail::refuse(errc::malformed, "a timeout together with the flag for none");
  }
  detail::check_limit("the size of the extension records", header.extension_bytes, limits.max_extension_bytes,
                      "max_extension_bytes");
  if (header.extension_bytes % 8 != 0) detail::refuse(errc::malformed, "extension records that do not end on 8 bytes");
  detail::check_limit("the number of tensors", header.tensor_count, limits.max_tensors, "max_tensors");
  // Each is checked on its own first, so that the sums cannot wrap.
  detail::check_limit("the size of the payload", header.payload_bytes, limits.max_message_bytes, "max_message_bytes");
  detail::check_limit("the size of the tensors", header.tensor_bytes, limits.max_message_bytes - header.payload_bytes,
                      "max_message_bytes, less the payload");
  const std::uint64_t count = header.tensor_count;
  if (header.table_bytes < count * detail::table_entry_fixed ||
      header.table_bytes > count * (detail::table_entry_fixed + detail::table_entry_per_axis * limits.max_rank)) {
    detail::refuse(errc::malformed, "a table of " + std::to_string(header.table_bytes) + " bytes for " +
                                        std::to_string(count) + " tensors");
  }
  if (count == 0 && header.tensor_bytes != 0) detail::refuse(errc::malformed, "tensor data without tensors");
  return header;
}

}  // namespace ferry::inline v0
