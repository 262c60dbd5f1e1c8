#pragma once

// Matrices in the last two axes of tensors, as products take them.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include <ferry/tensor/tensor.hpp>

#include "device_gemm.hpp"
#include "gemm.hpp"
#include "plain_gemm.hpp"

namespace ferry::inline v0::detail {

/// The call's product, of any type of element_set::arithmetic, in the memory of `result`, `a` and `b`, which are on one device. On a
/// device the call has no bias. Throws as gemm(); errc::device_failure.
template <class T>
void multiply_matrices(const gemm_call<T>& call, const tensor& result, const tensor& a, const tensor& b) {
  if (!result.device().is_cpu()) {
    multiply_on_device(call, result, a, b);
  } else if constexpr (std::is_floating_point_v<T>) {
    gemm(call);
  } else {
    plain_gemm(call);
  }
}

/// How the last two axes of a tensor lie in memory, as gemm_call has it.
struct matrix_layout {
  std::int64_t leading;
  bool transposed;
};

/// None if it has no such layout: a copy has.
inline std::optional<matrix_layout> find_matrix_layout(const tensor& t) {
  const std::int64_t rows = t.size(-2);
  const std::int64_t columns = t.size(-1);
  if (rows <= 1 && columns <= 1) return matrix_layout{std::max<std::int64_t>(columns, 1), false};
  const std::int64_t row = t.stride(-2);
  const std::int64_t column = t.stride(-1);
  // A column whose elements lie densely is a row for those who look at the transpose.
  const bool dense_column = columns == 1 && row == 1;
  if (!dense_column && (columns <= 1 || column == 1) && (rows <= 1 || row >= std::max<std::int64_t>(columns, 1)))
    return matrix_layout{rows <= 1 ? columns : row, false};
  if ((rows <= 1 || row == 1) && (columns <= 1 || column >= std::max<std::int64_t>(rows, 1)))
    return matrix_layout{columns <= 1 ? rows : column, true};
  return std::nullopt;
}

/// Matrices in the last two axes of a tensor: as they are, or in a dense copy.
struct matrices {
  tensor t;
  matrix_layout layout;

  explicit matrices(const tensor& from) : t(from), layout{1, false} {
    auto found = find_matrix_layout(t);
    if (!found) {
      t = t.contiguous();
      found = matrix_layout{std::max<std::int64_t>(t.size(-1), 1), false};
    }
    layout = *found;
  }
};

}  // namespace ferry::inline v0::detail
