#pragma once

// Elements without gradients, seen by the other library.

#include <ATen/core/Tensor.h>

#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// As from_torch() and to_torch(), for defined tensors; the results require no gradient.
tensor elements_of(const at::Tensor& t);
at::Tensor torch_elements_of(const tensor& t);

/// The tensor whose memory torch_elements_of() lent to the storage of `t`; undefined if that is libtorch's own.
tensor lent_elements(const at::Tensor& t);

/// Of a sparse (COO) tensor of libtorch, and the other way round.
sparse_tensor rows_of(const at::Tensor& t);
at::Tensor torch_rows_of(const sparse_tensor& t);

}  // namespace ferry::inline v0::detail
