#include <ferry/nn/init.hpp>

#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include <ferry/autograd/grad_mode.hpp>
#include <ferry/autograd/gradient.hpp>
#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "parameters.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

void need_floating(std::string_view function, const tensor& t) {
  if (!t.defined()) throw_error(errc::invalid_argument, fmt::format("{} of an undefined tensor", function));
  const dtype type = t.dtype();
  if (type == dtype::f16 || type == dtype::bf16 || type == dtype::f32 || type == dtype::f64) return;
  throw_error(errc::bad_dtype,
              fmt::format("{} works on floating-point numbers, not on {}", function, dtype_name(type)));
}

void need_number(bool holds, std::string_view function, std::string_view argument, double value,
                 std::string_view range) {
  if (holds && std::isfinite(value)) return;
  throw_error(errc::invalid_argument, fmt::format("{}: {} is {}; it must be {}", function, argument, value, range));
}

// draw() gives the elements in row-major order.
template <class Draw>
const tensor& fill_by(const tensor& t, Draw draw) {
  const tensor drawn = empty(t.shape(), dtype::f64);
  auto* const first = drawn.data<double>();
  for (std::int64_t i = 0; i != drawn.numel(); ++i) first[i] = draw();
  const no_grad outside;
  t.copy_(drawn);
  return t;
}

const tensor& fill_uniformly(const tensor& t, double low, double high, generator& source) {
  return fill_by(t, [&] { return low + (high - low) * source.uniform(); });
}
const tensor& fill_normally(const tensor& t, double mean, double deviation, generator& source) {
  return fill_by(t, [&] { return mean + deviation * source.normal(); });
}

double kaiming_deviation(std::string_view function, const tensor& t, const nn::kaiming_options& with) {
  need_floating(function, t);
  const nn::fans both = nn::fans_of(t);
  const auto fan = static_cast<double>(with.fan == nn::fan_mode::in ? both.in : both.out);
  const double gain = nn::gain_of(with.after, with.slope);
  return fan == 0 ? 0 : gain / std::sqrt(fan);
}

double xavier_deviation(std::string_view function, const tensor& t, double gain) {
  need_floating(function, t);
  need_number(gain >= 0, function, "the gain", gain, "at least 0");
  const nn::fans both = nn::fans_of(t);
  const auto sum = static_cast<double>(both.in + both.out);
  return sum == 0 ? 0 : gain * std::sqrt(2 / sum);
}

}  // namespace

void need_size(std::string_view made, std::string_view what, std::int64_t size) {
  if (size >= 1) return;
  throw_error(errc::bad_shape, fmt::format("{}: {} is {}; it must be at least 1", made, what, size));
}

tensor make_parameter(std::string_view made, const dims& shape, dtype type, device where) {
  if (type != dtype::f32 && type != dtype::f64) {
    throw_error(errc::bad_dtype, fmt::format("{}: parameters are f32 or f64, not {}", made, dtype_name(type)));
  }
  return require_grad(empty(shape, type, where));
}

void begin_uniformly(const tensor& t, std::int64_t fan, generator& source) {
  const double bound = 1 / std::sqrt(static_cast<double>(fan));
  fill_uniformly(t, -bound, bound, source);
}

}  // namespace detail

namespace nn {

const tensor& uniform_(const tensor& t, double low, double high, generator& source) {
  detail::need_floating("uniform_", t);
  detail::need_number(true, "uniform_", "low", low, "finite");
  detail::need_number(low <= high, "uniform_", "high", high, "finite, and not below low");
  return detail::fill_uniformly(t, low, high, source);
}

const tensor& normal_(const tensor& t, double mean, double deviation, generator& source) {
  detail::need_floating("normal_", t);
  detail::need_number(true, "normal_", "the mean", mean, "finite");
  detail::need_number(deviation >= 0, "normal_", "the deviation", deviation, "at least 0");
  return detail::fill_normally(t, mean, deviation, source);
}

const tensor& constant_(const tensor& t, double value) {
  detail::need_floating("constant_", t);
  const no_grad outside;
  t.fill_(value);
  return t;
}

const tensor& zeros_(const tensor& t) { return constant_(t, 0); }
const tensor& ones_(const tensor& t) { return constant_(t, 1); }

fans fans_of(const tensor& weight) {
  if (weight.rank() < 2) {
    throw_error(errc::bad_shape, fmt::format("the fans of a tensor of shape {}: it needs two axes, [out, in, ...]",
                                             to_string(weight.shape())));
  }
  std::int64_t field = 1;
  for (std::size_t axis = 2; axis != weight.rank(); ++axis) field *= weight.shape()[axis];
  return {.in = weight.size(1) * field, .out = weight.size(0) * field};
}

double gain_of(nonlinearity f, double slope) {
  switch (f) {
    case nonlinearity::tanh: return 5. / 3;
    case nonlinearity::relu: return std::sqrt(2.);
    case nonlinearity::leaky_relu:
      detail::need_number(true, "gain_of", "the slope", slope, "finite");
      return std::sqrt(2 / (1 + slope * slope));
    default: return 1;
  }
}

// A uniform distribution up to b in magnitude has the deviation b / sqrt(3).

const tensor& xavier_uniform_(const tensor& t, double gain, generator& source) {
  const double bound = std::sqrt(3.) * detail::xavier_deviation("xavier_uniform_", t, gain);
  return detail::fill_uniformly(t, -bound, bound, source);
}

const tensor& xavier_normal_(const tensor& t, double gain, generator& source) {
  return detail::fill_normally(t, 0, detail::xavier_deviation("xavier_normal_", t, gain), source);
}

const tensor& kaiming_uniform_(const tensor& t, const kaiming_options& with, generator& source) {
  const double bound = std::sqrt(3.) * detail::kaiming_deviation("kaiming_uniform_", t, with);
  return detail::fill_uniformly(t, -bound, bound, source);
}

const tensor& kaiming_normal_(const tensor& t, const kaiming_options& with, generator& source) {
  return detail::fill_normally(t, 0, detail::kaiming_deviation("kaiming_normal_", t, with), source);
}

}  // namespace nn
}  // namespace ferry::inline v0
