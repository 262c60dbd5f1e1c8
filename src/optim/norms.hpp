#pragma once

// Sums of squares on devices, for norms.

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// parts, square_sum_parts elements of f64 = partial sums of the squares of the elements.
void start_square_sums(const tensor& t, const tensor& parts);
/// norm, one element of f64 = the root of the sum of the parts.
void start_norm(const tensor& parts, const tensor& norm);

}  // namespace ferry::inline v0::detail
