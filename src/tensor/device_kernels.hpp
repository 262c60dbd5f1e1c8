#pragma once

// Elements of tensors on devices that the host does not reach: starting kernels on the current stream of their device.

#include <string_view>

#include <ferry/tensor/tensor.hpp>

#include "kernels.hpp"
#include "layout.hpp"

namespace ferry::inline v0::detail {

/// Whether there are kernels for the device. The functions below need them.
bool has_kernels(device where) noexcept;

/// Throws errc::bad_device unless arithmetic can be done where the tensor is.
void need_arithmetic(const tensor& t, std::string_view operation);

// All on the current stream of the tensors' device, which they share; their storages are told. Throw errc::device_failure.

/// Copies, and converts, between tensors of one shape.
void copy_by_kernel(const tensor& from, const tensor& to);
void fill_by_kernel(const tensor& t, const element_bytes& value);
void combine_by_kernel(const tensor& to, const tensor& a, const tensor& b, kernel_operation how, kernel_number factor);
void combine_by_kernel(const tensor& to, const tensor& a, kernel_operation how, kernel_number value);

}  // namespace ferry::inline v0::detail
