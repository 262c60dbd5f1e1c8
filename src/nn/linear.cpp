#include <ferry/nn/linear.hpp>

#include <cmath>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/nn/init.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/matmul.hpp>

#include "linear_map.hpp"
#include "parameters.hpp"

namespace ferry::inline v0 {

tensor detail::linear_map(const tensor& x, const tensor& weight, const tensor& bias) {
  if (x.rank() == 0 || weight.rank() != 2 || x.size(-1) != weight.size(1)) {
    throw_error(errc::bad_shape,
                fmt::format("linear: x of shape {} and a weight of shape {}; they have to be [..., in] and "
                            "[out, in]",
                            to_string(x.shape()), to_string(weight.shape())));
  }
  dims shape = x.shape();
  shape[shape.size() - 1] = weight.size(0);
  const tensor rows = x.rank() == 2 ? x : x.reshape({x.numel() / x.size(-1), x.size(-1)});
  tensor result = matmul(rows, weight.transpose(0, 1));
  if (bias.defined()) result = add(result, bias);
  return x.rank() == 2 ? result : result.view(shape);
}

namespace nn {

linear::linear(std::int64_t in, std::int64_t out, const linear_options& with, generator& source) {
  detail::need_size("linear", "in", in);
  detail::need_size("linear", "out", out);
  weight = detail::make_parameter("linear", {out, in}, with.dtype, with.device);
  // With this slope, the bound is 1 / sqrt(in).
  kaiming_uniform_(weight, {.slope = std::sqrt(5.)}, source);
  if (!with.bias) return;
  bias = detail::make_parameter("linear", {out}, with.dtype, with.device);
  detail::begin_uniformly(bias, in, source);
}

tensor linear::operator()(const tensor& x) const { return detail::linear_map(x, weight, bias); }

}  // namespace nn
}  // namespace ferry::inline v0
