#include <ferry/optim/rmsprop.hpp>

#include "apply.hpp"

namespace ferry::inline v0 {

void rmsprop::check(const options& with) {
  detail::need_option(with.lr >= 0, name, "lr", with.lr, "at least 0");
  detail::need_option(with.alpha >= 0, name, "alpha", with.alpha, "at least 0");
  detail::need_option(with.eps >= 0, name, "eps", with.eps, "at least 0");
  detail::need_option(with.weight_decay >= 0, name, "weight_decay", with.weight_decay, "at least 0");
  detail::need_option(with.momentum >= 0, name, "momentum", with.momentum, "at least 0");
}

void rmsprop::update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with) {
  check(with);
  detail::update_all(
      name, parameters, gradients, states,
      [&](std::size_t index, const tensor& parameter, state& kept) {
        detail::need_kept(name, index, "square", kept.square, parameter, parameter.shape());
        if (with.centered) detail::need_kept(name, index, "mean", kept.mean, parameter, parameter.shape());
        if (with.momentum > 0) detail::need_kept(name, index, "momentum", kept.momentum, parameter, parameter.shape());
      },
      [&](const tensor& parameter, const tensor& gradient, state& kept) {
        detail::apply_update(
            detail::operands_of(parameter, gradient, kept.square, with.centered ? kept.mean : parameter,
                                with.momentum > 0 ? kept.momentum : parameter),
            detail::rmsprop_update{.lr = with.lr,
                                   .alpha = with.alpha,
                                   .kept = 1 - with.alpha,
                                   .eps = with.eps,
                                   .weight_decay = with.weight_decay,
                                   .momentum = with.momentum,
                                   .centered = with.centered});
      });
}

}  // namespace ferry::inline v0
