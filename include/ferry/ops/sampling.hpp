#pragma once

// What draws random numbers: from the generator given, or from the calling thread's. They are drawn on the CPU, so that a seed gives the
// same on every device.

#include <cstdint>

#include <ferry/tensor/generator.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Each element becomes 0 with this probability, else it is divided by 1 - probability; f32 and f64. Throws errc::invalid_argument for a
/// probability outside of 0 ... 1, errc::bad_dtype. (N. Srivastava et al., "Dropout", 2014.)
[[nodiscard]] tensor dropout(const tensor& t, double probability, generator& source = default_generator());

/// `count` indices, of i64, drawn by the weights along the last axis of [choices] or [rows, choices], which are not negative, of f32 or f64
/// and on the CPU; each index once, or, with replacement, any number of times. Throws errc::bad_shape, errc::invalid_argument for weights
/// that are negative, not finite, or of which fewer than needed are positive.
[[nodiscard]] tensor multinomial(const tensor& weights, std::int64_t count, bool replacement = false,
                                 generator& source = default_generator());

}  // namespace ferry::inline v0
