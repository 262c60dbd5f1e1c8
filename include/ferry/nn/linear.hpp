#pragma once

// A layer of neurons.

#include <cstdint>

#include <ferry/device/device.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/generator.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::nn {

struct linear_options {
  bool bias = true;
  ferry::dtype dtype = ferry::dtype::f32;  ///< or f64
  ferry::device device = {};
};

/// x * weight^T + bias. Both begin uniformly up to 1 / sqrt(in) in magnitude, as in PyTorch.
struct linear {
  tensor weight;  ///< [out, in]
  tensor bias;    ///< [out], or undefined

  /// Throws errc::bad_shape unless both sizes are at least 1, errc::bad_dtype, errc::bad_device.
  linear(std::int64_t in, std::int64_t out, const linear_options& with = {}, generator& source = default_generator());

  /// [..., in] -> [..., out]. Throws errc::bad_shape, errc::bad_dtype, errc::bad_device.
  [[nodiscard]] tensor operator()(const tensor& x) const;

  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("weight", weight);
    visit("bias", bias);
  }
};

}  // namespace ferry::inline v0::nn
