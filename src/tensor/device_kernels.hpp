#pragma once

// Elements of tensors on devices whose memory the host cannot access: kernels on the current stream of their device.

#include <ferry/tensor/tensor.hpp>

#include "kernels.hpp"
#include "layout.hpp"

namespace ferry::inline v0::detail {

/// Whether there are kernels for the device. The functions below need them.
bool has_kernels(device where) noexcept;

// All run on the current stream of the tensors' common device and record its use of their storages. Throw
// errc::device_failure.

/// Copies, and converts, between tensors of one shape.
void copy_by_kernel(const tensor& from, const tensor& to);
void fill_by_kernel(const tensor& t, const element_bytes& value);

}  // namespace ferry::inline v0::detail
