#include <ferry/optim/sgd.hpp>

#include <ferry/base/error.hpp>

#include "apply.hpp"
#include "rows.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

sgd_update sgd_step(const sgd::options& with, bool first) {
  return {.lr = with.lr,
          .momentum = with.momentum,
          .kept_gradient = 1 - with.dampening,
          .weight_decay = with.weight_decay,
          .nesterov = with.nesterov,
          .first = first};
}

}  // namespace
}  // namespace detail

void sgd::check(const options& with) {
  detail::need_option(with.lr >= 0, name, "lr", with.lr, "at least 0");
  detail::need_option(with.momentum >= 0, name, "momentum", with.momentum, "at least 0");
  detail::need_option(with.dampening == with.dampening, name, "dampening", with.dampening, "a number");
  detail::need_option(with.weight_decay >= 0, name, "weight_decay", with.weight_decay, "at least 0");
  if (!with.nesterov) return;
  detail::need_option(with.momentum > 0, name, "momentum", with.momentum, "above 0 with nesterov");
  detail::need_option(with.dampening == 0, name, "dampening", with.dampening, "0 with nesterov");
}

void sgd::update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                 const options& with) {
  check(with);
  detail::update_all(
      name, parameters, gradients, states,
      [&](std::size_t index, const tensor& parameter, state& kept) {
        if (with.momentum == 0) return;
        detail::need_kept(name, index, "momentum", kept.momentum, parameter, parameter.shape());
      },
      [&](const tensor& parameter, const tensor& gradient, state& kept) {
        const bool first = with.momentum != 0 && kept.steps++ == 0;
        detail::apply_update(detail::operands_of(parameter, gradient, with.momentum == 0 ? parameter : kept.momentum),
                             detail::sgd_step(with, first));
      });
}

void sgd::update_rows(const tensor& parameter, const tensor& indices, const tensor& values, state& kept,
                      const options& with) {
  check(with);
  const detail::chosen_rows chosen = detail::choose_rows(name, parameter, indices, values);
  if (chosen.count == 0) return;
  if (with.momentum != 0) {
    detail::need_kept(name, 0, "momentum", kept.momentum, parameter, parameter.shape());
    ++kept.steps;
  }
  const tensor gradient = detail::apart_from(values, parameter);
  // Other rows have no first step of their own: all begin with a momentum of 0.
  detail::apply_rows(detail::operands_of(parameter, gradient, with.momentum == 0 ? parameter : kept.momentum), &chosen,
                     detail::sgd_step(with, false));
}

}  // namespace ferry::inline v0
