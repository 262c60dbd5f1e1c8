#include <ferry/wire/extension.hpp>

#include <algorithm>
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

namespace detail {

bool has_proper_padding(std::span<const std::byte> records, std::size_t length) noexcept {
  const std::span<const std::byte> padding = records.subspan(record_header + length, padded_record(length) - length);
  return std::all_of(padding.begin(), padding.end(), [](std::byte each) { return each == std::byte{0}; });
}

void refuse_extension(std::span<const std::byte> records) {
  if (records.size() < record_header) {
    throw_error(errc::truncated, "the extension records end within the header of one");
  }
  const auto flags = load_le<std::uint16_t>(records.data() + record_flags_at);
  const std::size_t length = load_le<std::uint32_t>(records.data() + record_length_at);
  const auto type = load_le<std::uint16_t>(records.data());
  if (range_of_extension(type) == extension_range::reserved) {
    throw_error(errc::malformed, describe_record(type) + ", which is reserved");
  }
  if ((flags & ~record_critical) != 0) {
    throw_error(errc::malformed, describe_record(type) + " has unknown flags " + std::to_string(flags));
  }
  const std::size_t left = records.size() - record_header;
  if (padded_record(length) > left) {
    throw_error(errc::truncated, describe_record(type) + " says " + std::to_string(length) + " bytes, " +
                                     std::to_string(left) + " are left");
  }
  throw_error(errc::malformed, describe_record(type) + " is padded with other than zeros");
}

}  // namespace detail

bool next_extension(std::span<const std::byte>& records, extension_record& record) {
  return detail::take_extension(records, record);
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
                  ", which this worker does not know; build both programs with the same version of ferry and the "
                  "same libraries of it (ferry-autograd for calls within a context of distributed autograd), and give "
                  "both workers the same interceptors (worker_config::interceptors)");
}

}  // namespace ferry::inline v0
