#pragma once

#include <cmath>
#include <cstdint>

#include <ferry/tensor/factories.hpp>

namespace ferry_test {

/// Numbers without a pattern, between -1 and 1, of f64.
inline ferry::tensor varied(const ferry::dims& shape, double seed) {
  ferry::tensor t = ferry::empty(shape, ferry::dtype::f64);
  auto* const first = t.data<double>();
  for (std::int64_t i = 0; i != t.numel(); ++i) first[i] = std::sin(seed + 1.7 * static_cast<double>(i));
  return t;
}

}  // namespace ferry_test
