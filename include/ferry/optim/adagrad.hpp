#pragma once

// Adagrad, for each element and for each row.

#include <cstdint>
#include <span>
#include <string_view>

#include <ferry/optim/algorithm.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Duchi, Hazan and Singer, Adaptive Subgradient Methods for Online Learning and Stochastic Optimization, 2011; as in PyTorch:
///
///   g += weight_decay * p;  s += g * g;  p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
///
/// t counts the calls, those of update_rows() too.
struct adagrad {
  static constexpr std::string_view name = "adagrad";

  struct options {
    double lr = 1e-2;                ///< at least 0
    double lr_decay = 0;             ///< at least 0
    double weight_decay = 0;         ///< at least 0
    double initial_accumulator = 0;  ///< what s begins with; at least 0
    double eps = 1e-10;              ///< at least 0

    template <class Archive>
    void serialize(Archive& archive) {
      archive(lr, lr_decay, weight_decay, initial_accumulator, eps);
    }
  };
  struct state {
    std::int64_t steps = 0;
    tensor sum;  ///< of the squares

    template <class Archive>
    void serialize(Archive& archive) {
      archive(steps, sum);
    }
    template <class Visit>
    void visit_tensors(Visit&& visit) {
      visit("sum", sum);
    }
  };

  static void check(const options& with);
  static void update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with);
  static void update_rows(const tensor& parameter, const tensor& indices, const tensor& values, state& kept,
                          const options& with);
};

/// Adagrad with one number for each row of a parameter [rows, ...]: what is kept of a table of embeddings is as much smaller as
/// its rows are long. As FBGEMM's exact row-wise Adagrad:
///
///   g += weight_decay * p;  s[row] += mean of g * g over the row;  p -= lr * g / (sqrt(s[row]) + eps)
///
/// Throws errc::bad_shape for a parameter without axes. On a device, one thread does a row.
struct row_wise_adagrad {
  static constexpr std::string_view name = "row_wise_adagrad";

  struct options {
    double lr = 1e-2;                ///< at least 0
    double weight_decay = 0;         ///< at least 0
    double initial_accumulator = 0;  ///< what s begins with; at least 0
    double eps = 1e-8;               ///< at least 0

    template <class Archive>
    void serialize(Archive& archive) {
      archive(lr, weight_decay, initial_accumulator, eps);
    }
  };
  struct state {
    tensor sum;  ///< of the means of the squares, [rows]

    template <class Archive>
    void serialize(Archive& archive) {
      archive(sum);
    }
    template <class Visit>
    void visit_tensors(Visit&& visit) {
      visit("sum", sum);
    }
  };

  static dims state_shape(const dims& parameter);
  static void check(const options& with);
  static void update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with);
  static void update_rows(const tensor& parameter, const tensor& indices, const tensor& values, state& kept,
                          const options& with);
};

}  // namespace ferry::inline v0
