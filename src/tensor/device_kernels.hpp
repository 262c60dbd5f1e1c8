#pragma once

// Elements of tensors on devices whose memory the host cannot access: kernels on the current stream of their device.

#include <string_view>

#include <ferry/tensor/tensor.hpp>

#include "kernels.hpp"
#include "layout.hpp"

namespace ferry::inline v0::detail {

/// Whether there are kernels for the device. The functions below need them.
bool has_kernels(device where) noexcept;

/// Throws errc::bad_device unless arithmetic is supported on the tensor's device.
void need_arithmetic(const tensor& t, std::string_view operation);

// All run on the current stream of the tensors' common device and record its use of their storages. Throw
// errc::device_failure.

/// Copies, and converts, between tensors of one shape.
void copy_by_kernel(const tensor& from, const tensor& to);
void fill_by_kernel(const tensor& t, const element_bytes& value);
void combine_by_kernel(const tensor& to, const tensor& a, const tensor& b, kernel_operation how, kernel_number factor);
void combine_by_kernel(const tensor& to, const tensor& a, kernel_operation how, kernel_number value);

}  // namespace ferry::inline v0::detail
