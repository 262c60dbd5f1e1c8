#pragma once

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// x * weight^T + bias, for x [..., in], weight [out, in], bias [out] or undefined. Throws errc::bad_shape, errc::bad_dtype,
/// errc::bad_device.
tensor linear_map(const tensor& x, const tensor& weight, const tensor& bias);

}  // namespace ferry::inline v0::detail
