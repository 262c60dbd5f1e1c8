#include <ferry/ops/sampling.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/tensor/factories.hpp>

#include "../tensor/layout.hpp"

namespace ferry::inline v0 {

tensor dropout(const tensor& t, double probability, generator& source) {
  if (!(probability >= 0 && probability <= 1)) {
    throw_error(errc::invalid_argument,
                fmt::format("dropout: the probability is {}; it has to be 0 ... 1", probability));
  }
  if (t.dtype() != dtype::f32 && t.dtype() != dtype::f64) {
    throw_error(errc::bad_dtype,
                fmt::format("dropout works on f32 and f64, not on {}; convert with to()", dtype_name(t.dtype())));
  }
  tensor factors = rand(t.shape(), source, dtype::f64);
  auto* const first = factors.data<double>();
  for (std::int64_t i = 0; i != factors.numel(); ++i) first[i] = first[i] < probability ? 0 : 1 / (1 - probability);
  return mul(t, factors.to(t.dtype()).to(t.device()));
}

namespace detail {
namespace {

[[noreturn]] void refuse_weights(const std::string& why) {
  throw_error(errc::invalid_argument, fmt::format("multinomial: {}", why));
}

// Draws by the sums up to each weight.
void draw_row(std::vector<double>& weights, std::int64_t* out, std::int64_t count, bool replacement,
              generator& source) {
  double total = 0;
  std::int64_t positive = 0;
  for (const double each : weights) {
    if (!(each >= 0) || !std::isfinite(each)) refuse_weights(fmt::format("a weight is {}", each));
    total += each;
    positive += each > 0 ? 1 : 0;
  }
  if (positive == 0 && count != 0) refuse_weights("no weight is positive");
  if (!replacement && positive < count) {
    refuse_weights(fmt::format("{} different indices of {} with a positive weight", count, positive));
  }
  for (std::int64_t i = 0; i != count; ++i) {
    double rest = source.uniform() * total;
    std::size_t chosen = weights.size();
    for (std::size_t at = 0; at != weights.size(); ++at) {
      if (weights[at] == 0) continue;
      chosen = at;  // the last one that is possible, whatever rounding leaves
      rest -= weights[at];
      if (rest < 0) break;
    }
    out[i] = static_cast<std::int64_t>(chosen);
    if (replacement) continue;
    weights[chosen] = 0;
    total = 0;
    for (const double each : weights) total += each;
  }
}

}  // namespace
}  // namespace detail

tensor multinomial(const tensor& weights, std::int64_t count, bool replacement, generator& source) {
  detail::need_cpu(weights, "multinomial");
  if (weights.dtype() != dtype::f32 && weights.dtype() != dtype::f64) {
    throw_error(errc::bad_dtype, fmt::format("multinomial works on f32 and f64, not on {}; convert with to()",
                                             dtype_name(weights.dtype())));
  }
  if (weights.rank() != 1 && weights.rank() != 2) {
    throw_error(errc::bad_shape, fmt::format("multinomial needs weights [choices] or [rows, choices]; the shape is {}",
                                             to_string(weights.shape())));
  }
  if (count < 0) detail::refuse_weights(fmt::format("{} indices", count));
  dims shape = weights.shape();
  shape[shape.size() - 1] = count;
  tensor result = empty(shape, dtype::i64);
  const tensor values = weights.to(dtype::f64).contiguous();
  const std::int64_t choices = weights.size(-1);
  const std::int64_t rows = weights.rank() == 1 ? 1 : weights.size(0);
  for (std::int64_t row = 0; row != rows; ++row) {
    const double* first = values.data<double>() + row * choices;
    std::vector<double> own(first, first + choices);
    // So that their sum is finite.
    const double largest = own.empty() ? 0 : *std::max_element(own.begin(), own.end());
    if (largest > 0 && std::isfinite(largest)) {
      for (double& each : own) each /= largest;
    }
    detail::draw_row(own, result.data<std::int64_t>() + row * count, count, replacement, source);
  }
  return result;
}

}  // namespace ferry::inline v0
