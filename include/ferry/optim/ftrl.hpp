#pragma once

// Follow the regularized leader.

#include <span>
#include <string_view>

#include <ferry/optim/algorithm.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// FTRL-Proximal: McMahan et al., Ad Click Prediction: a View from the Trenches, 2013, algorithm 1. For sparse linear models:
/// l1 makes weights exactly 0.
///
///   z += g - (sqrt(n + g * g) - sqrt(n)) / lr * p;  n += g * g
///   p = 0 if |z| <= l1, else -(z - sign(z) * l1) / ((beta + sqrt(n)) / lr + l2)
///
/// A parameter is a function of z and n: parameters begin at 0, others are forgotten at the first step.
struct ftrl {
  static constexpr std::string_view name = "ftrl";

  struct options {
    double lr = 1e-1;  ///< alpha in the paper; above 0
    double beta = 1;   ///< at least 0
    double l1 = 0;     ///< at least 0
    double l2 = 0;     ///< at least 0

    template <class Archive>
    void serialize(Archive& archive) {
      archive(lr, beta, l1, l2);
    }
  };
  struct state {
    tensor sum;     ///< of the squares of the gradients: n
    tensor linear;  ///< z

    template <class Archive>
    void serialize(Archive& archive) {
      archive(sum, linear);
    }
    template <class Visit>
    void visit_tensors(Visit&& visit) {
      visit("sum", sum);
      visit("linear", linear);
    }
  };

  static void check(const options& with);
  static void update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with);
};

}  // namespace ferry::inline v0
