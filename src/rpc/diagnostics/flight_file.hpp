#pragma once

#include <cstddef>
#include <span>

#include <ferry/rpc/worker_snapshot.hpp>

namespace ferry::inline v0::detail {

/// What a flight file with these bytes says. Throws errc::malformed and errc::version_mismatch.
[[nodiscard]] worker_snapshot decode_flight_file(std::span<const std::byte> bytes);

}  // namespace ferry::inline v0::detail
