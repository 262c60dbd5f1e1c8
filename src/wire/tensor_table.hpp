#pragma once

// Inspects a tensor table before it is decoded, and decodes it tensor by tensor.

#include <cstddef>
#include <span>

#include <ferry/tensor/tensor.hpp>
#include <ferry/wire/frame.hpp>
#include <ferry/wire/limits.hpp>

namespace ferry::inline v0::detail {

/// Whether a tensor is for a device other than the CPU. The table may be invalid; decoding it detects that.
[[nodiscard]] bool names_devices(const frame_header& header, std::span<const std::byte> table) noexcept;

/// Checks all that decode_tensor_table() does, and allocates nothing. Throws as it does.
void check_tensor_table(const frame_header& header, std::span<const std::byte> table, const wire_limits& limits);
/// Allocates the tensor that the first entry of `table` describes and takes the entry off. `table` is the rest of one
/// that check_tensor_table() accepted with these limits; `index` is the number of the entry.
[[nodiscard]] tensor take_tensor(std::span<const std::byte>& table, std::size_t index, const wire_limits& limits);

}  // namespace ferry::inline v0::detail
