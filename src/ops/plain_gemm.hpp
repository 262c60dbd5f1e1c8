#pragma once

// The product of matrices as loops, for integers, and where there is nothing faster.

#include <algorithm>
#include <cstdint>

#include "cpu_kernels.hpp"
#include "numbers.hpp"

namespace ferry::inline v0::detail {

/// The call's product; integers wrap.
template <class T>
void plain_gemm(const gemm_call<T>& call) {
  if (call.columns == 0) return;
  for (std::int64_t i = 0; i != call.rows; ++i) {
    T* row = call.out + i * call.out_leading;
    for (std::int64_t j = 0; j != call.columns; ++j) {
      const T start = call.bias ? call.bias[j] : T{};
      row[j] = call.accumulate ? plus(row[j], start) : start;
    }
  }
  constexpr std::int64_t block = 64;  // rows of b that stay in the cache while all rows of a are processed
  T turned[block * block];            // so many of a transposed b, with rows that lie densely
  const std::int64_t width = call.b_transposed ? block : std::max<std::int64_t>(call.columns, 1);
  const std::int64_t a_row = call.a_transposed ? 1 : call.a_leading;
  const std::int64_t a_column = call.a_transposed ? call.a_leading : 1;
  for (std::int64_t from = 0; from < call.inner; from += block) {
    const std::int64_t to = std::min(call.inner, from + block);
    for (std::int64_t left = 0; left < call.columns; left += width) {
      const std::int64_t count = std::min(call.columns - left, width);
      const T* part = call.b + from * call.b_leading + left;
      std::int64_t part_leading = call.b_leading;
      if (call.b_transposed) {
        for (std::int64_t j = 0; j != count; ++j) {
          for (std::int64_t k = from; k != to; ++k)
            turned[(k - from) * block + j] = call.b[(left + j) * call.b_leading + k];
        }
        part = turned;
        part_leading = block;
      }
      for (std::int64_t i = 0; i != call.rows; ++i) {
        T* row = call.out + i * call.out_leading + left;
        for (std::int64_t k = from; k != to; ++k) {
          const T factor = call.a[i * a_row + k * a_column];
          const T* other = part + (k - from) * part_leading;
          for (std::int64_t j = 0; j != count; ++j) row[j] = plus(row[j], times(factor, other[j]));
        }
      }
    }
  }
}

}  // namespace ferry::inline v0::detail
