#include <ferry/nn/dropout.hpp>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/ops/sampling.hpp>

namespace ferry::inline v0::nn {

dropout::dropout(double probability_of_zero) : probability(probability_of_zero) {
  if (probability >= 0 && probability <= 1) return;
  throw_error(errc::invalid_argument, fmt::format("dropout: the probability is {}; it has to be 0 ... 1", probability));
}

tensor dropout::operator()(const tensor& x, generator& source) const {
  return training ? ferry::dropout(x, probability, source) : x;
}

}  // namespace ferry::inline v0::nn
