#pragma once

#include <ferry/ops/comparison.hpp>

#include "../tensor/kernels.hpp"

namespace ferry::inline v0::detail {

template <class T>
FERRY_KERNEL bool compares(comparison how, T a, T b) {
  switch (how) {
    case comparison::eq: return a == b;
    case comparison::ne: return a != b;
    case comparison::lt: return a < b;
    case comparison::le: return a <= b;
    case comparison::gt: return a > b;
    default: return a >= b;
  }
}

}  // namespace ferry::inline v0::detail
