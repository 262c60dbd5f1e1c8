#include <ferry/wire/extension.hpp>

#include <string>

#include <ferry/base/detail/little_endian.hpp>
#include <ferry/base/error.hpp>

#include "extension_format.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

std::string describe_record(std::uint16_t type) { return "extension record of type " + std::to_string(type); }

}  // namespace
}  // namespace detail

bool next_extension(std::span<const std::byte>& records, extension_record& record) {
  if (records.empty()) return false;
  if (records.size() < detail::record_header) {
    throw_error(errc::truncated, "the extension records end within the header of one");
  }
  const auto flags = detail::load_le<std::uint16_t>(records.data() + detail::record_flags_at);
  const std::size_t length = detail::load_le<std::uint32_t>(records.data() + detail::record_length_at);
  record.type = detail::load_le<std::uint16_t>(records.data());
  record.critical = (flags & detail::record_critical) != 0;
  if (range_of_extension(record.type) == extension_range::reserved) {
    throw_error(errc::malformed, detail::describe_record(record.type) + ", which is reserved");
  }
  if ((flags & ~detail::record_critical) != 0) {
    throw_error(errc::malformed, detail::describe_record(record.type) + " has unknown flags " + std::to_string(flags));
  }
  const std::size_t left = records.size() - detail::record_header;
  if (detail::padded_record(length) > left) {
    throw_error(errc::truncated, detail::describe_record(record.type) + " says " + std::to_string(length) + " bytes, " +
                                     std::to_string(left) + " are left");
  }
  record.content = records.subspan(detail::record_header, length);
  for (std::size_t i = length; i < detail::padded_record(length); ++i) {
    if (records[detail::record_header + i] != std::byte{0}) {
      throw_error(errc::malformed, detail::describe_record(record.type) + " is padded with other than zeros");
    }
  }
  records = records.subspan(detail::record_header + detail::padded_record(length));
  return true;
}

void check_extensions(std::span<const std::byte> records, const wire_limits& limits) {
  extension_record record;
  for (std::uint32_t count = 0; next_extension(records, record); ++count) {
    if (count < limits.max_extensions) continue;
    throw_error(errc::limit_exceeded, "a message with more than " + std::to_string(limits.max_extensions) +
                                          " extension records (wire_limits::max_extensions)");
  }
}

void skip_extension(const extension_record& record) {
  if (!record.critical) return;
  throw_error(errc::unknown_extension,
              "the message has a critical extension record of type " + std::to_string(record.type) +
                  ", which this worker does not know; build both programs with the same version of ferry, and give "
                  "both workers the same interceptors (worker_config::interceptors)");
}

}  // namespace ferry::inline v0
