#pragma once

// Adamax.

#include <cstdint>
#include <span>
#include <string_view>

#include <ferry/optim/algorithm.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Adam with the infinity norm: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015, section 7.1; as in PyTorch:
///
///   g += weight_decay * p;  m = beta1 * m + (1 - beta1) * g;  u = max(beta2 * u, |g| + eps);  p -= lr / (1 - beta1^t) * m / u
struct adamax {
  static constexpr std::string_view name = "adamax";

  struct options {
    double lr = 2e-3;         ///< at least 0
    double beta1 = 0.9;       ///< in [0, 1)
    double beta2 = 0.999;     ///< in [0, 1)
    double eps = 1e-8;        ///< at least 0
    double weight_decay = 0;  ///< at least 0

    template <class Archive>
    void serialize(Archive& archive) {
      archive(lr, beta1, beta2, eps, weight_decay);
    }
  };
  struct state {
    std::int64_t steps = 0;
    tensor mean;     ///< of the gradients
    tensor largest;  ///< the norm of the gradients

    template <class Archive>
    void serialize(Archive& archive) {
      archive(steps, mean, largest);
    }
    template <class Visit>
    void visit_tensors(Visit&& visit) {
      visit("mean", mean);
      visit("largest", largest);
    }
  };

  static void check(const options& with);
  static void update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with);
};

}  // namespace ferry::inline v0
