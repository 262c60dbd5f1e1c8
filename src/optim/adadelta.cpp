#include <ferry/optim/adadelta.hpp>

#include "apply.hpp"

namespace ferry::inline v0 {

void adadelta::check(const options& with) {
  detail::need_option(with.lr >= 0, name, "lr", with.lr, "at least 0");
  detail::need_option(with.rho >= 0 && with.rho <= 1, name, "rho", with.rho, "in [0, 1]");
  detail::need_option(with.eps >= 0, name, "eps", with.eps, "at least 0");
  detail::need_option(with.weight_decay >= 0, name, "weight_decay", with.weight_decay, "at least 0");
}

void adadelta::update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                      const options& with) {
  check(with);
  detail::update_all(
      name, parameters, gradients, states,
      [&](std::size_t index, const tensor& parameter, state& kept) {
        detail::need_kept(name, index, "square", kept.square, parameter, parameter.shape());
        detail::need_kept(name, index, "deltas", kept.deltas, parameter, parameter.shape());
      },
      [&](const tensor& parameter, const tensor& gradient, state& kept) {
        detail::apply_update(detail::operands_of(parameter, gradient, kept.square, kept.deltas),
                             detail::adadelta_update{.lr = with.lr,
                                                     .rho = with.rho,
                                                     .kept = 1 - with.rho,
                                                     .eps = with.eps,
                                                     .weight_decay = with.weight_decay});
      });
}

}  // namespace ferry::inline v0
