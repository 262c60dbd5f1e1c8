#pragma once

// A recurrent cell.

#include <cstdint>

#include <ferry/device/device.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/generator.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::nn {

struct gru_cell_options {
  bool bias = true;
  ferry::dtype dtype = ferry::dtype::f32;  ///< or f64
  ferry::device device = {};
};

/// A gated recurrent unit, in PyTorch's form and layout (K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014;
/// the reset gate is applied after the product, as in cuDNN):
///
///   r = sigmoid(W_ir x + b_ir + W_hr h + b_hr);  z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
///   n = tanh(W_in x + b_in + r * (W_hn h + b_hn));  h' = (1 - z) * n + z * h
///
/// The parameters hold those of r, z and n one below the other, and begin uniformly up to 1 / sqrt(hidden) in magnitude.
struct gru_cell {
  tensor weight_ih;  ///< [3 * hidden, in]
  tensor weight_hh;  ///< [3 * hidden, hidden]
  tensor bias_ih;    ///< [3 * hidden], or undefined
  tensor bias_hh;    ///< [3 * hidden], or undefined

  /// Throws errc::bad_shape unless both sizes are at least 1, errc::bad_dtype, errc::bad_device.
  gru_cell(std::int64_t in, std::int64_t hidden, const gru_cell_options& with = {},
           generator& source = default_generator());

  /// One step: x [..., in] and the state h [..., hidden] -> the next state. An undefined state is zeros. Throws errc::bad_shape,
  /// errc::bad_dtype, errc::bad_device.
  [[nodiscard]] tensor operator()(const tensor& x, const tensor& state = {}) const;

  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("weight_ih", weight_ih);
    visit("weight_hh", weight_hh);
    visit("bias_ih", bias_ih);
    visit("bias_hh", bias_hh);
  }
};

}  // namespace ferry::inline v0::nn
