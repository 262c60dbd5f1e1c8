#pragma once

// Norms of gradients.

#include <span>
#include <vector>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// parts, square_sum_parts elements of f64 = partial sums of the squares of the elements.
void start_square_sums(const tensor& t, const tensor& parts);
/// norm, one element of f64 = the root of the sum of the parts.
void start_norm(const tensor& parts, const tensor& norm);

/// Those that are defined; throws unless all can be written.
std::vector<tensor> need_gradients(const char* what, std::span<const tensor> gradients);
/// f64 without axes, on the device of the first one.
tensor norm_of(std::span<const tensor> gradients);
/// Each times min(1, most / (norm + 1e-6)).
void rescale(std::span<const tensor> gradients, const tensor& norm, double most);

}  // namespace ferry::inline v0::detail
