#pragma once

// Stochastic gradient descent.

#include <cstdint>
#include <span>
#include <string_view>

#include <ferry/optim/algorithm.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Gradient descent with momentum, as in PyTorch (Sutskever et al., On the importance of initialization and momentum in deep
/// learning, 2013, in a form where the rate multiplies the whole step):
///
///   g += weight_decay * p;  m = momentum * m + (1 - dampening) * g;  p -= lr * m    (Nesterov: p -= lr * (g + momentum * m))
///
/// The first m is g. Of rows that update_rows() touches, it is (1 - dampening) * g.
struct sgd {
  static constexpr std::string_view name = "sgd";

  struct options {
    double lr = 1e-3;         ///< at least 0
    double momentum = 0;      ///< at least 0
    double dampening = 0;     ///< of the gradient, in the momentum
    double weight_decay = 0;  ///< at least 0
    bool nesterov = false;    ///< needs momentum, and no dampening

    template <class Archive>
    void serialize(Archive& archive) {
      archive(lr, momentum, dampening, weight_decay, nesterov);
    }
  };
  struct state {
    std::int64_t steps = 0;  ///< with momentum
    tensor momentum;         ///< undefined without momentum

    template <class Archive>
    void serialize(Archive& archive) {
      archive(steps, momentum);
    }
    template <class Visit>
    void visit_tensors(Visit&& visit) {
      visit("momentum", momentum);
    }
  };

  static void check(const options& with);
  static void update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with);
  static void update_rows(const tensor& parameter, const tensor& indices, const tensor& values, state& kept,
                          const options& with);
};

}  // namespace ferry::inline v0
