#include <ferry/nn/gru.hpp>

#include <vector>

#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/elementwise.hpp>
#include <ferry/ops/joining.hpp>
#include <ferry/ops/linear.hpp>
#include <ferry/tensor/factories.hpp>

#include "parameters.hpp"

namespace ferry::inline v0::nn {

gru_cell::gru_cell(std::int64_t in, std::int64_t hidden, const gru_cell_options& with, generator& source) {
  detail::need_size("gru_cell", "in", in);
  detail::need_size("gru_cell", "hidden", hidden);
  const auto make = [&](const dims& shape) {
    tensor t = detail::make_parameter("gru_cell", shape, with.dtype, with.device);
    detail::begin_uniformly(t, hidden, source);
    return t;
  };
  weight_ih = make({3 * hidden, in});
  weight_hh = make({3 * hidden, hidden});
  if (!with.bias) return;
  bias_ih = make({3 * hidden});
  bias_hh = make({3 * hidden});
}

tensor gru_cell::operator()(const tensor& x, const tensor& state) const {
  const tensor from_x = ferry::linear(x, weight_ih, bias_ih);
  const std::int64_t hidden = weight_hh.size(1);
  tensor before = state;
  if (!before.defined()) {
    dims shape = x.shape();
    shape[shape.size() - 1] = hidden;
    before = zeros(shape, x.dtype(), x.device());
  }
  const tensor from_state = ferry::linear(before, weight_hh, bias_hh);
  const std::vector<tensor> in = split(from_x, hidden, -1);
  const std::vector<tensor> back = split(from_state, hidden, -1);
  const tensor reset = sigmoid(in[0] + back[0]);
  const tensor keep = sigmoid(in[1] + back[1]);
  const tensor fresh = tanh(in[2] + reset * back[2]);
  return fresh + keep * (before - fresh);
}

}  // namespace ferry::inline v0::nn
