#include <ferry/nn/layer_norm.hpp>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/nn/init.hpp>
#include <ferry/ops/normalization.hpp>

#include "parameters.hpp"

namespace ferry::inline v0::nn {

layer_norm::layer_norm(const dims& over, const layer_norm_options& with) : shape(over), epsilon(with.epsilon) {
  if (shape.empty()) throw_error(errc::bad_shape, "layer_norm over no axes");
  for (const std::int64_t size : shape) detail::need_size("layer_norm", "a size", size);
  if (!(epsilon > 0)) {
    throw_error(errc::invalid_argument, fmt::format("layer_norm: epsilon is {}; it must be positive", epsilon));
  }
  if (!with.affine) return;
  weight = ones_(detail::make_parameter("layer_norm", shape, with.dtype, with.device));
  bias = zeros_(detail::make_parameter("layer_norm", shape, with.dtype, with.device));
}

tensor layer_norm::operator()(const tensor& x) const { return ferry::layer_norm(x, shape, weight, bias, epsilon); }

}  // namespace ferry::inline v0::nn
