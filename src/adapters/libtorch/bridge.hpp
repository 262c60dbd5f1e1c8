#pragma once

// Where the graphs of the libraries meet.

#include <ATen/core/Tensor.h>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// The gradient of `t` goes where that of `torch`, whose elements it has, goes in libtorch's graph; nowhere if that requires none, or
/// the thread records nothing (at::NoGradGuard). Throws errc::bad_dtype if it does and a context is in force, but the type is
/// not f32 or f64; without one, `t` then requires none.
void lead_to_torch(const tensor& t, const at::Tensor& torch);

/// The other way round. The gradient goes to ferry's graph, or to the worker from which `t` came.
void lead_from_torch(at::Tensor& torch, const tensor& t);

}  // namespace ferry::inline v0::detail
