#pragma once

// Resilient backpropagation.

#include <span>
#include <string_view>

#include <ferry/optim/algorithm.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Riedmiller and Braun, A Direct Adaptive Method for Faster Backpropagation Learning: The RPROP Algorithm, 1993, in the form
/// of PyTorch: each element has a step, which grows while its gradient keeps its sign, shrinks where that changes (and the
/// element then stays where it is), and is taken against the sign of the gradient. For gradients of the whole data set.
struct rprop {
  static constexpr std::string_view name = "rprop";

  struct options {
    double lr = 1e-2;        ///< the first step; at least 0
    double eta_minus = 0.5;  ///< in (0, 1): how a step shrinks
    double eta_plus = 1.2;   ///< above 1: how it grows
    double step_min = 1e-6;  ///< at least 0
    double step_max = 50;    ///< at least step_min

    template <class Archive>
    void serialize(Archive& archive) {
      archive(lr, eta_minus, eta_plus, step_min, step_max);
    }
  };
  struct state {
    tensor previous;  ///< the gradient before; 0 where the sign has changed
    tensor step;

    template <class Archive>
    void serialize(Archive& archive) {
      archive(previous, step);
    }
    template <class Visit>
    void visit_tensors(Visit&& visit) {
      visit("previous", previous);
      visit("step", step);
    }
  };

  static void check(const options& with);
  static void update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with);
};

}  // namespace ferry::inline v0
