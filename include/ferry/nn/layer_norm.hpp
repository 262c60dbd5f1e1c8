#pragma once

// Normalisation of each sample.

#include <ferry/device/device.hpp>
#include <ferry/tensor/dims.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::nn {

struct layer_norm_options {
  double epsilon = 1e-5;
  bool affine = true;                      ///< with weight and bias
  ferry::dtype dtype = ferry::dtype::f32;  ///< or f64
  ferry::device device = {};
};

/// ferry::layer_norm() over the last axes; weight begins with ones, bias with zeros.
struct layer_norm {
  dims shape;
  double epsilon;
  tensor weight;  ///< of that shape, or undefined
  tensor bias;    ///< of that shape, or undefined

  /// Of axes of these sizes. Throws errc::bad_shape for none, and for sizes below 1, errc::invalid_argument unless epsilon is
  /// positive, errc::bad_dtype, errc::bad_device.
  explicit layer_norm(const dims& shape, const layer_norm_options& with = {});

  /// [..., shape] -> [..., shape]. Throws as ferry::layer_norm().
  [[nodiscard]] tensor operator()(const tensor& x) const;

  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("weight", weight);
    visit("bias", bias);
  }
};

}  // namespace ferry::inline v0::nn
