#pragma once

// Reductions on elements in memory of the host.

#include <cstddef>

#include <ferry/group/plan.hpp>
#include <ferry/tensor/dtype.hpp>

namespace ferry::inline v0::detail {

/// Throws errc::bad_dtype if elements of that type cannot be reduced so.
void check_reduction(dtype type, reduce_op op);
/// into[i] = other[i] (op) into[i]; avg adds. Narrow floating-point types are rounded after each step.
void reduce_elements(dtype type, reduce_op op, void* into, const void* other, std::size_t count) noexcept;
/// into[i] = second[i] (op) first[i], as reduce_elements() does. `into` does not overlap the others.
void combine_elements(dtype type, reduce_op op, void* into, const void* first, const void* second,
                      std::size_t count) noexcept;
/// into[i] /= n.
void divide_elements(dtype type, void* into, std::size_t count, int n) noexcept;

}  // namespace ferry::inline v0::detail
