#pragma once

// How the two ends of a connection over shared memory hand each other their host memory for tensors: as a second descriptor, with the
// rings and with the answer to them. docs/protocol.md, section Shared memory, specifies every byte.

#include <cstdint>
#include <memory>
#include <string_view>

#include <ferry/transport/transport.hpp>

#include "../../base/unique_fd.hpp"
#include "../channels/direct_memory.hpp"
#include "../shm/shared_rings.hpp"

namespace ferry::inline v0::detail {

/// What the two ends of a connection say of memory that they share, and workers do not see.
inline constexpr std::uint64_t features_of_shm = feature_device_memory | feature_host_memory;

/// Whether to say feature_host_memory on a connection whose ends have these features: tensors that are lent come in messages of the kind
/// of those from devices.
[[nodiscard]] bool can_share_host_memory(std::uint64_t features, const transport_options& options) noexcept;

/// What the other end has handed over: not used, with a line in the log, where it cannot be mapped.
[[nodiscard]] shared_host_memory take_host_memory(const unique_fd& descriptor, std::string_view peer);

/// For a connection whose ends share nothing else.
[[nodiscard]] std::shared_ptr<direct_memory> share_host_memory(const shared_rings& rings, shared_host_memory host);

}  // namespace ferry::inline v0::detail
