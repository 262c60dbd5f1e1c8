#include <ferry/ops/normalization.hpp>

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/elementwise.hpp>
#include <ferry/ops/sum.hpp>

namespace ferry::inline v0 {

tensor layer_norm(const tensor& t, const dims& shape, const tensor& weight, const tensor& bias, double epsilon) {
  const bool fits = shape.size() <= t.rank() && std::equal(shape.begin(), shape.end(), t.shape().end() - shape.size());
  if (!fits || shape.size() == 0) {
    throw_error(errc::bad_shape, fmt::format("layer_norm over the last axes, of sizes {}, of a tensor of shape {}",
                                             to_string(shape), to_string(t.shape())));
  }
  for (const tensor* each : {&weight, &bias}) {
    if (!each->defined() || each->shape() == shape) continue;
    throw_error(errc::bad_shape, fmt::format("layer_norm over axes of sizes {} with a {} of shape {}", to_string(shape),
                                             each == &weight ? "weight" : "bias", to_string(each->shape())));
  }
  dims axes(shape.size(), std::int64_t{0});
  for (std::size_t i = 0; i != axes.size(); ++i) axes[i] = static_cast<std::int64_t>(t.rank() - shape.size() + i);
  const tensor centred = sub(t, mean(t, axes, true));
  const tensor variance = mean(mul(centred, centred), axes, true);
  tensor result = mul(centred, pow(add(variance, epsilon), -0.5));
  if (weight.defined()) result = mul(result, weight);
  if (bias.defined()) result = add(result, bias);
  return result;
}

}  // namespace ferry::inline v0
