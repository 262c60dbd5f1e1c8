#pragma once

// Schedules of the learning rate: what it is multiplied by at a step, as functions of the number of steps made so far. They can
// be multiplied with each other:
//
//   const double lr = 0.1 * ferry::linear_warmup(step, 100) * ferry::cosine_decay(step, 10'000);
//   optimizer.set_lr(lr);
//
// All throw errc::invalid_argument for a negative step, for lengths that are not positive, and for factors that are negative or
// not finite. Thread-safe.

#include <cstdint>
#include <initializer_list>
#include <span>

namespace ferry::inline v0 {

/// From `start` up to 1 in that many steps, in a straight line; then 1. As PyTorch's LinearLR.
[[nodiscard]] double linear_warmup(std::int64_t step, std::int64_t steps, double start = 0);

/// Times `factor` every so many steps. As StepLR.
[[nodiscard]] double step_decay(std::int64_t step, std::int64_t every, double factor = 0.1);

/// Times `factor` at each of these steps. As MultiStepLR; they need not be sorted.
[[nodiscard]] double multi_step_decay(std::int64_t step, std::span<const std::int64_t> milestones, double factor = 0.1);
[[nodiscard]] inline double multi_step_decay(std::int64_t step, std::initializer_list<std::int64_t> milestones,
                                             double factor = 0.1) {
  return multi_step_decay(step, std::span<const std::int64_t>(milestones.begin(), milestones.size()), factor);
}

/// Times `factor` at every step. As ExponentialLR.
[[nodiscard]] double exponential_decay(std::int64_t step, double factor);

/// From 1 down to `end` in that many steps along half a cosine; then `end`. Loshchilov and Hutter, SGDR: Stochastic Gradient
/// Descent with Warm Restarts, 2017, without restarts; as CosineAnnealingLR, which rises again instead.
[[nodiscard]] double cosine_decay(std::int64_t step, std::int64_t steps, double end = 0);

}  // namespace ferry::inline v0
