#pragma once

// How parameters begin, by PyTorch's rules. The functions write a tensor in place, outside of the graph (leaves that require a gradient,
// too), and return it. Numbers are drawn in f64, in row-major order, on the CPU, and rounded to the tensor's dtype: a seed gives the same
// on every device, and the same up to rounding in every dtype.
//
// Errors of all: errc::bad_dtype unless the elements are f16, bf16, f32 or f64, errc::invalid_argument for arguments out of their
// range, and for an undefined tensor, errc::bad_shape for a tensor that cannot be written, or has fewer than two axes where fans are
// needed. Threads: as for any write; a generator belongs to one thread at a time.

#include <cstdint>

#include <ferry/tensor/generator.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::nn {

/// Uniform between low and high.
const tensor& uniform_(const tensor& t, double low = 0, double high = 1, generator& source = default_generator());
/// Normal, with this mean and standard deviation, which is not negative.
const tensor& normal_(const tensor& t, double mean = 0, double deviation = 1, generator& source = default_generator());
const tensor& constant_(const tensor& t, double value);
const tensor& zeros_(const tensor& t);
const tensor& ones_(const tensor& t);

/// Of a weight of shape [out, in, ...]: the number of inputs of an output, and of outputs of an input.
struct fans {
  std::int64_t in = 0;
  std::int64_t out = 0;
};
[[nodiscard]] fans fans_of(const tensor& weight);

/// What follows a weight.
enum class nonlinearity : std::uint8_t { linear, sigmoid, tanh, relu, leaky_relu };
/// The factor that keeps the variance through it: 1, 1, 5/3, sqrt(2), sqrt(2 / (1 + slope^2)). The slope is that of leaky_relu for
/// negative inputs.
[[nodiscard]] double gain_of(nonlinearity f, double slope = 0.01);

/// Uniform up to gain * sqrt(6 / (fan_in + fan_out)) in magnitude, or normal with the deviation gain * sqrt(2 / (fan_in + fan_out)).
/// (X. Glorot and Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.)
const tensor& xavier_uniform_(const tensor& t, double gain = 1, generator& source = default_generator());
const tensor& xavier_normal_(const tensor& t, double gain = 1, generator& source = default_generator());

enum class fan_mode : std::uint8_t { in, out };
struct kaiming_options {
  double slope = 0;  ///< of leaky_relu
  fan_mode fan = fan_mode::in;
  nonlinearity after = nonlinearity::leaky_relu;
};
/// Uniform up to gain * sqrt(3 / fan) in magnitude, or normal with the deviation gain / sqrt(fan). (K. He et al., "Delving deep into
/// rectifiers", 2015.)
const tensor& kaiming_uniform_(const tensor& t, const kaiming_options& with = {},
                               generator& source = default_generator());
const tensor& kaiming_normal_(const tensor& t, const kaiming_options& with = {},
                              generator& source = default_generator());

}  // namespace ferry::inline v0::nn
