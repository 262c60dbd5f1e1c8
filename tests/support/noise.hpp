#pragma once

#include <cstdint>

#include <ferry/tensor/factories.hpp>

namespace ferry_test {

/// A tensor of f32 with elements in [0, 1) that look random and are the same every time.
inline ferry::tensor noise(const ferry::dims& shape, std::uint32_t seed = 1) {
  ferry::tensor result = ferry::empty(shape);
  float* out = result.data<float>();
  std::uint32_t state = seed * 2654435761U + 1;
  for (std::int64_t i = 0; i != result.numel(); ++i) {
    state = state * 1664525U + 1013904223U;
    out[i] = static_cast<float>(state >> 8U) / static_cast<float>(1U << 24U);
  }
  return result;
}

}  // namespace ferry_test
