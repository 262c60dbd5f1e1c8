#pragma once

// Snapshots of workers as bytes, for tools that observe a group.

#include <cstddef>
#include <span>

#include <ferry/base/bytes.hpp>
#include <ferry/rpc/worker_snapshot.hpp>
#include <ferry/wire/limits.hpp>

namespace ferry::inline v0::detail {

[[nodiscard]] byte_buffer encode_snapshot(const worker_snapshot& of);
/// Throws errc::version_mismatch for the format of another release, errc::malformed and similar errors.
[[nodiscard]] worker_snapshot decode_snapshot(std::span<const std::byte> bytes, const wire_limits& limits);

}  // namespace ferry::inline v0::detail
