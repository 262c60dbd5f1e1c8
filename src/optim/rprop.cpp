#include <ferry/optim/rprop.hpp>

#include "apply.hpp"

namespace ferry::inline v0 {

void rprop::check(const options& with) {
  detail::need_option(with.lr >= 0, name, "lr", with.lr, "at least 0");
  detail::need_option(with.eta_minus > 0 && with.eta_minus < 1, name, "eta_minus", with.eta_minus, "in (0, 1)");
  detail::need_option(with.eta_plus > 1, name, "eta_plus", with.eta_plus, "above 1");
  detail::need_option(with.step_min >= 0, name, "step_min", with.step_min, "at least 0");
  detail::need_option(with.step_max >= with.step_min, name, "step_max", with.step_max, "at least step_min");
}

void rprop::update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                   const options& with) {
  check(with);
  detail::update_all(
      name, parameters, gradients, states,
      [&](std::size_t index, const tensor& parameter, state& kept) {
        detail::need_kept(name, index, "previous", kept.previous, parameter, parameter.shape());
        detail::need_kept(name, index, "step", kept.step, parameter, parameter.shape(), with.lr);
      },
      [&](const tensor& parameter, const tensor& gradient, state& kept) {
        detail::apply_update(detail::operands_of(parameter, gradient, kept.previous, kept.step),
                             detail::rprop_update{.eta_minus = with.eta_minus,
                                                  .eta_plus = with.eta_plus,
                                                  .step_min = with.step_min,
                                                  .step_max = with.step_max});
      });
}

}  // namespace ferry::inline v0
