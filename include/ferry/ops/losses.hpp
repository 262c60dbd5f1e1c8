#pragma once

// Losses: how far predictions are from targets. Of f32 and f64, composed of the other operations, so that they have gradients and run
// where their tensors are.
//
// Errors of all: errc::bad_shape, errc::bad_dtype, errc::bad_device, as of the operations.

#include <cstdint>
#include <optional>
#include <string_view>

#include <ferry/ops/elementwise.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// What becomes of the loss of each element.
enum class reduction : std::uint8_t { none, mean, sum };

/// (prediction - target)^2
[[nodiscard]] tensor mse_loss(const tensor& prediction, const tensor& target, reduction how = reduction::mean);
/// d^2 / 2 for a distance d up to delta, and delta * (d - delta / 2) beyond it (P. Huber, "Robust Estimation of a Location Parameter",
/// 1964). Throws errc::invalid_argument unless delta is positive and finite.
[[nodiscard]] tensor huber_loss(const tensor& prediction, const tensor& target, double delta = 1,
                                reduction how = reduction::mean);
/// -target * log(p) - (1 - target) * log(1 - p) for p = sigmoid(logit), without overflow.
[[nodiscard]] tensor bce_with_logits(const tensor& logits, const tensor& target, reduction how = reduction::mean);
/// -log_probabilities[i][target[i]] for [count, classes] and targets of i64, [count]; or for [classes] and a target without axes. A target
/// that is to be ignored counts nothing, also for the mean; a mean of nothing is NaN.
[[nodiscard]] tensor nll_loss(const tensor& log_probabilities, const tensor& target, reduction how = reduction::mean,
                              std::optional<std::int64_t> ignored = {});
/// nll_loss() of log_softmax(logits).
[[nodiscard]] tensor cross_entropy(const tensor& logits, const tensor& target, reduction how = reduction::mean,
                                   std::optional<std::int64_t> ignored = {});

namespace op {

/// The loss of each element.
struct bce_with_logits : detail::binary_descriptor<detail::binary_function::bce_with_logits> {
  static constexpr std::string_view name = "bce_with_logits";
};

}  // namespace op

}  // namespace ferry::inline v0
