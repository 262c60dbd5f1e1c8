#pragma once

// How tensors are sent: as exactly their visible elements in the order of their strides. Gaps are closed, an axis of
// stride 0 is sent once, and a transposed tensor stays transposed.
//
// A packed tensor is one whose distinct elements are one dense block: leave out the axes of stride 0 and of size 1,
// sort the others by stride, and each stride is the product of the sizes before it (1 for the first). Dtype, shape,
// strides and the bytes of that block describe it completely.

#include <cstddef>
#include <cstdint>
#include <span>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// `t` itself if it is packed and its memory is owned; else a packed copy with its shape and the order of its strides.
/// Borrowed memory (from_blob without an owner) is copied because it may be freed while the tensor is being sent. A
/// copy on a device is made in the order of its current stream, as tensor::clone does. Throws errc::out_of_memory,
/// errc::device_failure.
[[nodiscard]] tensor pack(const tensor& t);

namespace detail {
/// The same for a message or an archive that `t` goes into: hooks do not see the copy.
[[nodiscard]] tensor packed_to_send(const tensor& t);
}  // namespace detail

/// Whether the distinct elements of `t` are one dense block.
[[nodiscard]] bool is_packed(const tensor& t);

/// The bytes of a packed tensor's block. Throws errc::bad_shape if `t` is not packed. The span is valid as long as the
/// storage exists.
[[nodiscard]] std::span<const std::byte> packed_bytes(const tensor& t);
/// The same, to receive into: for an unshared tensor, so hooks are not called and the version is not raised.
[[nodiscard]] std::span<std::byte> writable_packed_bytes(const tensor& t);

/// The size of a packed tensor's block. The arguments may come from an untrusted peer: throws errc::bad_shape for ranks
/// that differ or are above 32, negative sizes or strides, sizes whose product overflows, and strides that are not
/// packed.
[[nodiscard]] std::uint64_t packed_size(dtype type, std::span<const std::int64_t> shape,
                                        std::span<const std::int64_t> strides);

/// An uninitialised packed tensor of that shape and those strides (strides of axes of size 0 or 1 are irrelevant and
/// are replaced). Checks as packed_size does before anything is allocated. Throws errc::out_of_memory,
/// errc::bad_device.
[[nodiscard]] tensor empty_packed(dtype type, std::span<const std::int64_t> shape,
                                  std::span<const std::int64_t> strides, device where = {});

namespace detail {
/// Such a tensor over a block that begins with its elements, and has packed_size() bytes of them.
[[nodiscard]] tensor packed_over(storage block, dtype type, std::span<const std::int64_t> shape,
                                 std::span<const std::int64_t> strides);
}  // namespace detail

}  // namespace ferry::inline v0
