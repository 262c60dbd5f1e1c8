#pragma once

// Normalisation, of f32 and f64, composed of the other operations.

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// (t - mean) / sqrt(variance + epsilon) over the last axes, as many as `shape` has, which are of these sizes; then times `weight`, then
/// plus `bias`, of that shape, unless they are undefined. (J. Ba, J. Kiros, G. Hinton, "Layer Normalization", 2016.) Throws
/// errc::bad_shape, errc::bad_dtype, errc::bad_device.
[[nodiscard]] tensor layer_norm(const tensor& t, const dims& shape, const tensor& weight = {}, const tensor& bias = {},
                                double epsilon = 1e-5);

}  // namespace ferry::inline v0
