#include <ferry/optim/ftrl.hpp>

#include "apply.hpp"

namespace ferry::inline v0 {

void ftrl::check(const options& with) {
  detail::need_option(with.lr > 0, name, "lr", with.lr, "above 0");
  detail::need_option(with.beta >= 0, name, "beta", with.beta, "at least 0");
  detail::need_option(with.l1 >= 0, name, "l1", with.l1, "at least 0");
  detail::need_option(with.l2 >= 0, name, "l2", with.l2, "at least 0");
}

void ftrl::update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                  const options& with) {
  check(with);
  detail::update_all(
      name, parameters, gradients, states,
      [&](std::size_t index, const tensor& parameter, state& kept) {
        detail::need_kept(name, index, "sum", kept.sum, parameter, parameter.shape());
        detail::need_kept(name, index, "linear", kept.linear, parameter, parameter.shape());
      },
      [&](const tensor& parameter, const tensor& gradient, state& kept) {
        detail::apply_update(detail::operands_of(parameter, gradient, kept.sum, kept.linear),
                             detail::ftrl_update{.lr = with.lr, .beta = with.beta, .l1 = with.l1, .l2 = with.l2});
      });
}

}  // namespace ferry::inline v0
