#include "profile_archive.hpp"

#include <cstdint>
#include <initializer_list>
#include <vector>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/wire/serialize.hpp>

#include "profile_batch.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::uint32_t profile_format = 2;

bool are_times(std::initializer_list<std::int64_t> all, std::int64_t least) noexcept {
  for (const std::int64_t each : all) {
    if (each < least || each > longest_profile_time) return false;
  }
  return true;
}
bool is_node(std::int32_t node) noexcept { return node >= -1 && node <= worker_id::max; }

bool can_be(const profiler::event& each) noexcept {
  return each.kind <= range_kind::collective && is_node(each.node) && is_node(each.peer) && each.number != 0 &&
         each.parent != each.number && are_times({each.began_ns, each.ended_ns}, -longest_profile_time) &&
         each.ended_ns >= each.began_ns && are_times({each.queued_ns, each.uncertainty_ns}, 0) && each.bytes >= -1 &&
         (!each.device_time || are_times({each.device_time->count()}, 0));
}

}  // namespace

byte_buffer encode_profile(const profiler::profile& of) {
  byte_buffer bytes;
  std::vector<tensor> none;
  encode_values<std::uint32_t, profiler::profile>(bytes, none, profile_format, of);
  return bytes;
}

profiler::profile decode_profile(std::span<const std::byte> bytes, const wire_limits& limits) {
  std::uint32_t format = 0;
  if (bytes.size() >= sizeof format) decode_values(bytes.first(sizeof format), {}, limits, format);
  if (format != profile_format) {
    throw_error(errc::version_mismatch,
                fmt::format("a worker sends a profile in format {}; this program reads format {}: use the tools of the "
                            "workers' release",
                            format, profile_format));
  }
  profiler::profile found;
  decode_values(bytes.subspan(sizeof format), {}, limits, found);
  if (!is_node(found.node) || !are_times({found.began_ns, found.ended_ns}, -longest_profile_time))
    throw_error(errc::malformed,
                fmt::format("a profile is of worker {}, from {} to {}", found.node, found.began_ns, found.ended_ns));
  for (const profiler::event& each : found.events) {
    if (!can_be(each))
      throw_error(errc::malformed, fmt::format("event {} of a profile has numbers that cannot be", each.number));
  }
  for (const profiler::clock_offset& each : found.clocks) {
    if (!is_node(each.node) || !are_times({each.offset_ns}, -longest_profile_time) ||
        !are_times({each.uncertainty_ns}, 0))
      throw_error(errc::malformed, fmt::format("the clock of worker {} in a profile cannot be", each.node));
  }
  return found;
}

}  // namespace ferry::inline v0::detail
