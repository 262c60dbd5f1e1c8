#pragma once

// How tensors lie in memory, for the graph and for formulas. Internal.

#include <cstddef>
#include <cstdint>
#include <optional>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// Whether tensors of this type have gradients.
constexpr bool has_gradients(dtype type) noexcept { return type == dtype::f32 || type == dtype::f64; }

/// A tensor over the same elements, without a slot.
tensor alias_of(const tensor& t);
/// Whether nothing else refers to the tensor or to its memory, where it lies densely: it may be written, or given away.
bool is_only_owner(const tensor& t);
/// The position behind the last element, in elements of the storage.
std::int64_t end_of_elements(const dims& shape, const dims& strides, std::int64_t offset);
/// An axis along which elements may share memory; none if each has its own.
std::optional<std::size_t> overlapping_axis(const dims& shape, const dims& strides);

/// `gradient` summed over the axes that `shape` was stretched along.
tensor summed_to(const tensor& gradient, const dims& shape);
/// part += gradient, of one shape. Elements of `part` that share memory get the sum of their gradients.
void add_to_part(const tensor& part, const tensor& gradient);

}  // namespace ferry::inline v0::detail
