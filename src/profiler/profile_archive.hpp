#pragma once

// Profiles as bytes, for tools that record a group.

#include <cstddef>
#include <span>

#include <ferry/base/bytes.hpp>
#include <ferry/profiler/profile.hpp>
#include <ferry/wire/limits.hpp>

namespace ferry::inline v0::detail {

[[nodiscard]] byte_buffer encode_profile(const profiler::profile& of);
/// Throws errc::version_mismatch for the format of another release, errc::malformed for times and numbers that cannot be,
/// errc::truncated, errc::limit_exceeded. Reports can be made of what it returns.
[[nodiscard]] profiler::profile decode_profile(std::span<const std::byte> bytes, const wire_limits& limits);

}  // namespace ferry::inline v0::detail
