#include <ferry/nn/linear.hpp>

#include <cmath>

#include <ferry/nn/init.hpp>
#include <ferry/ops/linear.hpp>

#include "parameters.hpp"

namespace ferry::inline v0 {

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

tensor linear::operator()(const tensor& x) const { return ferry::linear(x, weight, bias); }

}  // namespace nn
}  // namespace ferry::inline v0
