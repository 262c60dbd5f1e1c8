#pragma once

// The kernels of rows.hpp on devices that have kernels, on the current stream of the tensors' common device, which is recorded as a
// user of them. Throws errc::device_failure.

#include <cstdint>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

void softmax_by_kernel(const tensor& to, const tensor& t, std::int64_t axis, bool logarithm);
void softmax_gradient_by_kernel(const tensor& to, const tensor& gradient, const tensor& result, std::int64_t axis,
                                bool logarithm);
/// `to` has size 1 along the axis, as have `values` and `indices`.
void logsumexp_by_kernel(const tensor& to, const tensor& t, std::int64_t axis);
void extreme_by_kernel(const tensor& values, const tensor& indices, const tensor& t, std::int64_t axis, bool largest);
/// `index` and `source` have one shape; `to` is nowhere shorter, but along the axis.
void scatter_add_by_kernel(const tensor& to, const tensor& index, const tensor& source, std::int64_t axis);
/// `from` has the shape of `to` and `index`, and does not step along the axis: it has `places` elements there, `step` apart.
void gather_by_kernel(const tensor& to, const tensor& index, const tensor& from, std::int64_t places,
                      std::int64_t step);

}  // namespace ferry::inline v0::detail
