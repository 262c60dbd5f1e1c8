#pragma once

// The plan of a walk over the elements of several tensors of one shape. Plain numbers: kernels use it, too.

#include <array>
#include <cstddef>
#include <cstdint>

#include <ferry/tensor/dims.hpp>

namespace ferry::inline v0::detail {

/// A walk over N tensors of one shape: axes joined where possible, sorted so that the first operand is written in
/// order.
template <std::size_t N>
struct walk {
  std::size_t rank = 0;
  std::array<std::int64_t, max_rank> shape;
  std::array<std::array<std::int64_t, N>, max_rank> steps;  // in bytes
  std::array<std::byte*, N> start;
  bool empty = false;
};

}  // namespace ferry::inline v0::detail
