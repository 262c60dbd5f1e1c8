#pragma once

// What a callee has recorded of one request, as it travels with the reply: docs/protocol.md, "Profiles".

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ferry/base/bytes.hpp>
#include <ferry/profiler/profile.hpp>

#include "../device/timing.hpp"

namespace ferry::inline v0::detail {

inline constexpr std::uint16_t profile_record_type = 6;

/// What the caller wants of the callee's events.
struct profile_wishes {
  bool shapes = false;
  bool memory = false;
  bool device_times = false;
  bool brief = false;  ///< the caller reads brief answers
};

inline constexpr std::size_t bytes_of_wishes = 8;
[[nodiscard]] std::array<std::byte, bytes_of_wishes> encode_profile_wishes(const profile_wishes& wishes) noexcept;
/// Throws errc::malformed.
profile_wishes decode_profile_wishes(std::span<const std::byte> content);

/// Where and how long the work of an operation ran.
struct told_device_time {
  std::size_t event = 0;  ///< which of the batch
  device on;
  std::int64_t time_ns = device_time_unknown;  ///< or device_time_pending: to be asked for, by its token
  std::uint64_t token = 0;                     ///< of those that are pending: device_times.hpp
};

/// Events of one request. Their numbers are from 1 on, those without a parent are parts of the call.
struct profile_batch {
  std::int32_t node = -1;
  std::int64_t received_ns = 0;  ///< the request, on the callee's steady clock, as are the times of the events
  std::int64_t answered_ns = 0;
  std::uint64_t lost = 0;
  bool brief = false;  ///< it was a brief answer: its event has no name
  std::vector<profiler::event> events;
  std::vector<told_device_time> device_times;  ///< by events, of which each has one at most
};

/// The longest time that is believed, in nanoseconds: 36 years. Sums and differences of a few do not overflow.
inline constexpr std::int64_t longest_profile_time = std::int64_t{1} << 60U;

/// No longer than `limit` bytes: the last events are lost, if need be.
byte_buffer encode_profile_batch(const profile_batch& batch, std::size_t limit);

/// What a request has left of which nothing but its handler was recorded, which ended well: most small ones. The caller knows the
/// rest, the method's name too. Times are counted from the one before, in nanoseconds.
struct brief_answer {
  std::int64_t received_ns = 0;
  std::uint32_t queued_ns = 0;  ///< until the handler began
  std::uint32_t ran_ns = 0;
  std::uint32_t answered_ns = 0;  ///< from its end
  std::uint32_t thread = 0;
};
inline constexpr std::size_t bytes_of_brief_answer = 24;
[[nodiscard]] std::array<std::byte, bytes_of_brief_answer> encode_brief_answer(const brief_answer& answer) noexcept;
/// Empty: it is another record, or has times that are not believed, which decode_profile_batch() tells.
[[nodiscard]] std::optional<brief_answer> decode_brief_answer(std::span<const std::byte> content) noexcept;
/// One event, without a name; of no worker.
[[nodiscard]] profile_batch batch_of(const brief_answer& answer);

/// How many events, with those that are lost, such a record tells of, as far as that can be true; without reading them.
[[nodiscard]] std::uint64_t events_in_batch(std::span<const std::byte> content) noexcept;
/// Also of a brief answer. Throws errc::truncated or errc::malformed; allocates no more than in proportion to the content.
profile_batch decode_profile_batch(std::span<const std::byte> content);

}  // namespace ferry::inline v0::detail
