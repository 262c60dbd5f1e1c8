#pragma once

// A small set of arithmetic for examples, tests and parameter servers; on tensors of i32, i64, f32 and f64, on the CPU
// and (not sum and matmul) on CUDA devices, in the order of the calling thread's current stream. Integers wrap. Results
// are new contiguous tensors unless the name ends in an underscore.
//
// Errors of all: errc::bad_shape (the text names both shapes), errc::bad_dtype for other or different dtypes (nothing
// is promoted: convert with to()) and for a real scalar with an integer tensor, errc::bad_device.

#include <cstdint>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// The common shape: sizes are matched from the last axis, and a size of 1 or a missing one is stretched.
[[nodiscard]] dims broadcast_shapes(const dims& a, const dims& b);

// Element by element, over shapes that broadcast.

/// a + alpha * b
[[nodiscard]] tensor add(const tensor& a, const tensor& b, const scalar& alpha = 1);
[[nodiscard]] tensor add(const tensor& a, const scalar& b);
/// a - alpha * b
[[nodiscard]] tensor sub(const tensor& a, const tensor& b, const scalar& alpha = 1);
[[nodiscard]] tensor sub(const tensor& a, const scalar& b);
[[nodiscard]] tensor mul(const tensor& a, const tensor& b);
[[nodiscard]] tensor mul(const tensor& a, const scalar& b);

// In place; `b` broadcasts to the shape of `a`, which is returned. Hooks are called, the version is raised
// (tensor::mark_written).

/// a += alpha * b
const tensor& add_(const tensor& a, const tensor& b, const scalar& alpha = 1);
const tensor& add_(const tensor& a, const scalar& b);
/// a -= alpha * b
const tensor& sub_(const tensor& a, const tensor& b, const scalar& alpha = 1);
const tensor& mul_(const tensor& a, const tensor& b);
const tensor& mul_(const tensor& a, const scalar& b);

/// The sum of all elements, as a tensor without axes: f32 and f64 in their dtype (computed in f64), integers as i64.
[[nodiscard]] tensor sum(const tensor& t);
/// The product of two matrices, [n, k] x [k, m] -> [n, m].
[[nodiscard]] tensor matmul(const tensor& a, const tensor& b);

[[nodiscard]] inline tensor operator+(const tensor& a, const tensor& b) { return add(a, b); }
[[nodiscard]] inline tensor operator+(const tensor& a, const scalar& b) { return add(a, b); }
[[nodiscard]] inline tensor operator+(const scalar& a, const tensor& b) { return add(b, a); }
[[nodiscard]] inline tensor operator-(const tensor& a, const tensor& b) { return sub(a, b); }
[[nodiscard]] inline tensor operator-(const tensor& a, const scalar& b) { return sub(a, b); }
[[nodiscard]] inline tensor operator*(const tensor& a, const tensor& b) { return mul(a, b); }
[[nodiscard]] inline tensor operator*(const tensor& a, const scalar& b) { return mul(a, b); }
[[nodiscard]] inline tensor operator*(const scalar& a, const tensor& b) { return mul(b, a); }

}  // namespace ferry::inline v0
