#pragma once

// How modules make their parameters.

#include <cstdint>
#include <string_view>

#include <ferry/device/device.hpp>
#include <ferry/tensor/dims.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/generator.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// Throws errc::bad_shape that names the module and the size unless it is at least 1.
void need_size(std::string_view made, std::string_view what, std::int64_t size);

/// An uninitialised leaf that requires a gradient. Throws errc::bad_dtype unless f32 or f64.
tensor make_parameter(std::string_view made, const dims& shape, dtype type, device where);

/// Uniform up to 1 / sqrt(fan) in magnitude.
void begin_uniformly(const tensor& t, std::int64_t fan, generator& source);

}  // namespace ferry::inline v0::detail
