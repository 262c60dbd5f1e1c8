#pragma once

// Dropout as a module.

#include <ferry/tensor/generator.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::nn {

/// ferry::dropout() while the module is trained, else nothing: x itself.
struct dropout {
  double probability;
  bool training = true;  ///< set by train() and eval()

  /// Throws errc::invalid_argument for a probability outside of 0 ... 1.
  explicit dropout(double probability = 0.5);

  /// Throws as ferry::dropout().
  [[nodiscard]] tensor operator()(const tensor& x, generator& source = default_generator()) const;

  template <class Visit>
  void visit_members(Visit&&) {}
};

}  // namespace ferry::inline v0::nn
