#include <ferry/optim/adagrad.hpp>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "apply.hpp"
#include "rows.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

adagrad_update adagrad_step(const adagrad::options& with, std::int64_t step) {
  return {.rate = with.lr / (1 + static_cast<double>(step - 1) * with.lr_decay),
          .eps = with.eps,
          .weight_decay = with.weight_decay};
}

row_wise_update row_wise_step(const row_wise_adagrad::options& with) {
  return {.lr = with.lr, .eps = with.eps, .weight_decay = with.weight_decay};
}

void keep_rows(std::size_t index, const tensor& parameter, row_wise_adagrad::state& kept, double initial) {
  if (parameter.rank() == 0) {
    throw_error(errc::bad_shape,
                fmt::format("{} has no axes, so it has no rows", name_of_parameter(row_wise_adagrad::name, index)));
  }
  need_kept(row_wise_adagrad::name, index, "sum", kept.sum, parameter, {parameter.size(0)}, initial);
}

}  // namespace
}  // namespace detail

void adagrad::check(const options& with) {
  detail::need_option(with.lr >= 0, name, "lr", with.lr, "at least 0");
  detail::need_option(with.lr_decay >= 0, name, "lr_decay", with.lr_decay, "at least 0");
  detail::need_option(with.weight_decay >= 0, name, "weight_decay", with.weight_decay, "at least 0");
  detail::need_option(with.initial_accumulator >= 0, name, "initial_accumulator", with.initial_accumulator,
                      "at least 0");
  detail::need_option(with.eps >= 0, name, "eps", with.eps, "at least 0");
}

void adagrad::update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                     const options& with) {
  check(with);
  detail::update_all(
      name, parameters, gradients, states,
      [&](std::size_t index, const tensor& parameter, state& kept) {
        detail::need_kept(name, index, "sum", kept.sum, parameter, parameter.shape(), with.initial_accumulator);
      },
      [&](const tensor& parameter, const tensor& gradient, state& kept) {
        detail::apply_update(detail::operands_of(parameter, gradient, kept.sum),
                             detail::adagrad_step(with, ++kept.steps));
      });
}

void adagrad::update_rows(const tensor& parameter, const tensor& indices, const tensor& values, state& kept,
                          const options& with) {
  check(with);
  const detail::chosen_rows chosen = detail::choose_rows(name, parameter, indices, values);
  if (chosen.count == 0) return;
  detail::need_kept(name, 0, "sum", kept.sum, parameter, parameter.shape(), with.initial_accumulator);
  const tensor gradient = detail::apart_from(values, parameter);
  detail::apply_rows(detail::operands_of(parameter, gradient, kept.sum), &chosen,
                     detail::adagrad_step(with, ++kept.steps));
}

dims row_wise_adagrad::state_shape(const dims& parameter) { return parameter.empty() ? dims{} : dims{parameter[0]}; }

void row_wise_adagrad::check(const options& with) {
  detail::need_option(with.lr >= 0, name, "lr", with.lr, "at least 0");
  detail::need_option(with.weight_decay >= 0, name, "weight_decay", with.weight_decay, "at least 0");
  detail::need_option(with.initial_accumulator >= 0, name, "initial_accumulator", with.initial_accumulator,
                      "at least 0");
  detail::need_option(with.eps >= 0, name, "eps", with.eps, "at least 0");
}

void row_wise_adagrad::update(std::span<const tensor> parameters, std::span<const tensor> gradients,
                              std::span<state> states, const options& with) {
  check(with);
  detail::update_all(
      name, parameters, gradients, states,
      [&](std::size_t index, const tensor& parameter, state& kept) {
        detail::keep_rows(index, parameter, kept, with.initial_accumulator);
      },
      [&](const tensor& parameter, const tensor& gradient, state& kept) {
        detail::apply_rows(detail::operands_of(parameter, gradient, kept.sum), nullptr, detail::row_wise_step(with));
      });
}

void row_wise_adagrad::update_rows(const tensor& parameter, const tensor& indices, const tensor& values, state& kept,
                                   const options& with) {
  check(with);
  const detail::chosen_rows chosen = detail::choose_rows(name, parameter, indices, values);
  if (chosen.count == 0) return;
  detail::keep_rows(0, parameter, kept, with.initial_accumulator);
  const tensor gradient = detail::apart_from(values, parameter);
  detail::apply_rows(detail::operands_of(parameter, gradient, kept.sum), &chosen, detail::row_wise_step(with));
}

}  // namespace ferry::inline v0
