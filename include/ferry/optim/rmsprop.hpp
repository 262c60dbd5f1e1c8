#pragma once

// RMSprop.

#include <span>
#include <string_view>

#include <ferry/optim/algorithm.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Tieleman and Hinton, lecture 6.5 of Neural Networks for Machine Learning, 2012; centered: Graves, Generating Sequences With
/// Recurrent Neural Networks, 2013. As in PyTorch:
///
///   g += weight_decay * p;  v = alpha * v + (1 - alpha) * g * g            (centered: less the square of the mean of g)
///   s = g / (sqrt(v) + eps);  m = momentum * m + s;  p -= lr * m           (without momentum: p -= lr * s)
struct rmsprop {
  static constexpr std::string_view name = "rmsprop";

  struct options {
    double lr = 1e-2;         ///< at least 0
    double alpha = 0.99;      ///< at least 0
    double eps = 1e-8;        ///< at least 0
    double weight_decay = 0;  ///< at least 0
    double momentum = 0;      ///< at least 0
    bool centered = false;

    template <class Archive>
    void serialize(Archive& archive) {
      archive(lr, alpha, eps, weight_decay, momentum, centered);
    }
  };
  struct state {
    tensor square;    ///< the mean of the squares of the gradients
    tensor mean;      ///< of the gradients; undefined unless centered
    tensor momentum;  ///< undefined without momentum

    template <class Archive>
    void serialize(Archive& archive) {
      archive(square, mean, momentum);
    }
    template <class Visit>
    void visit_tensors(Visit&& visit) {
      visit("square", square);
      visit("mean", mean);
      visit("momentum", momentum);
    }
  };

  static void check(const options& with);
  static void update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with);
};

}  // namespace ferry::inline v0
