#pragma once

// Adam, and AdamW.

#include <cstdint>
#include <span>
#include <string_view>

#include <ferry/optim/algorithm.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015; AMSGrad: Reddi et al., On the Convergence of Adam and
/// Beyond, 2018. Weight decay is added to the gradient.
///
///   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g * g
///   p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)               (amsgrad: the largest v so far)
///
/// update_rows() is lazy Adam: the means of other rows do not decay, and t counts calls, not how often a row was touched.
struct adam {
  static constexpr std::string_view name = "adam";

  struct options {
    double lr = 1e-3;         ///< at least 0
    double beta1 = 0.9;       ///< in [0, 1)
    double beta2 = 0.999;     ///< in [0, 1)
    double eps = 1e-8;        ///< at least 0
    double weight_decay = 0;  ///< at least 0
    bool amsgrad = false;

    template <class Archive>
    void serialize(Archive& archive) {
      archive(lr, beta1, beta2, eps, weight_decay, amsgrad);
    }
  };
  struct state {
    std::int64_t steps = 0;
    tensor mean;            ///< of the gradients
    tensor square;          ///< the mean of their squares
    tensor largest_square;  ///< undefined without amsgrad

    template <class Archive>
    void serialize(Archive& archive) {
      archive(steps, mean, square, largest_square);
    }
    template <class Visit>
    void visit_tensors(Visit&& visit) {
      visit("mean", mean);
      visit("square", square);
      visit("largest_square", largest_square);
    }
  };

  static void check(const options& with);
  static void update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with);
  static void update_rows(const tensor& parameter, const tensor& indices, const tensor& values, state& kept,
                          const options& with);
};

/// Adam whose weight decay is apart from the gradient: p *= 1 - lr * weight_decay before each step. Loshchilov and Hutter,
/// Decoupled Weight Decay Regularization, 2019.
struct adamw {
  static constexpr std::string_view name = "adamw";

  struct options {
    double lr = 1e-3;            ///< at least 0
    double beta1 = 0.9;          ///< in [0, 1)
    double beta2 = 0.999;        ///< in [0, 1)
    double eps = 1e-8;           ///< at least 0
    double weight_decay = 1e-2;  ///< at least 0
    bool amsgrad = false;

    template <class Archive>
    void serialize(Archive& archive) {
      archive(lr, beta1, beta2, eps, weight_decay, amsgrad);
    }
  };
  using state = adam::state;

  static void check(const options& with);
  static void update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with);
  static void update_rows(const tensor& parameter, const tensor& indices, const tensor& values, state& kept,
                          const options& with);
};

}  // namespace ferry::inline v0
