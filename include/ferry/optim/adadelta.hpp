#pragma once

// Adadelta.

#include <span>
#include <string_view>

#include <ferry/optim/algorithm.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012; as in PyTorch:
///
///   g += weight_decay * p;  v = rho * v + (1 - rho) * g * g
///   d = sqrt(u + eps) / sqrt(v + eps) * g;  u = rho * u + (1 - rho) * d * d;  p -= lr * d
struct adadelta {
  static constexpr std::string_view name = "adadelta";

  struct options {
    double lr = 1;            ///< at least 0
    double rho = 0.9;         ///< in [0, 1]
    double eps = 1e-6;        ///< at least 0
    double weight_decay = 0;  ///< at least 0

    template <class Archive>
    void serialize(Archive& archive) {
      archive(lr, rho, eps, weight_decay);
    }
  };
  struct state {
    tensor square;  ///< the mean of the squares of the gradients
    tensor deltas;  ///< the mean of the squares of the steps

    template <class Archive>
    void serialize(Archive& archive) {
      archive(square, deltas);
    }
    template <class Visit>
    void visit_tensors(Visit&& visit) {
      visit("square", square);
      visit("deltas", deltas);
    }
  };

  static void check(const options& with);
  static void update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with);
};

}  // namespace ferry::inline v0
