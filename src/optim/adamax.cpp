#include <ferry/optim/adamax.hpp>

#include <cmath>

#include "apply.hpp"

namespace ferry::inline v0 {

void adamax::check(const options& with) {
  detail::need_option(with.lr >= 0, name, "lr", with.lr, "at least 0");
  detail::need_option(with.beta1 >= 0 && with.beta1 < 1, name, "beta1", with.beta1, "in [0, 1)");
  detail::need_option(with.beta2 >= 0 && with.beta2 < 1, name, "beta2", with.beta2, "in [0, 1)");
  detail::need_option(with.eps >= 0, name, "eps", with.eps, "at least 0");
  detail::need_option(with.weight_decay >= 0, name, "weight_decay", with.weight_decay, "at least 0");
}

void adamax::update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                    const options& with) {
  check(with);
  detail::update_all(
      name, parameters, gradients, states,
      [&](std::size_t index, const tensor& parameter, state& kept) {
        detail::need_kept(name, index, "mean", kept.mean, parameter, parameter.shape());
        detail::need_kept(name, index, "largest", kept.largest, parameter, parameter.shape());
      },
      [&](const tensor& parameter, const tensor& gradient, state& kept) {
        detail::apply_update(
            detail::operands_of(parameter, gradient, kept.mean, kept.largest),
            detail::adamax_update{.beta1 = with.beta1,
                                  .kept1 = 1 - with.beta1,
                                  .beta2 = with.beta2,
                                  .rate = with.lr / (1 - std::pow(with.beta1, static_cast<double>(++kept.steps))),
                                  .eps = with.eps,
                                  .weight_decay = with.weight_decay});
      });
}

}  // namespace ferry::inline v0
