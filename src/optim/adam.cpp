#include <ferry/optim/adam.hpp>

#include <cmath>
#include <concepts>

#include "apply.hpp"
#include "rows.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

template <class Algorithm>
constexpr bool decay_apart = std::same_as<Algorithm, adamw>;

template <class Algorithm>
void check_adam(const typename Algorithm::options& with) {
  need_option(with.lr >= 0, Algorithm::name, "lr", with.lr, "at least 0");
  need_option(with.beta1 >= 0 && with.beta1 < 1, Algorithm::name, "beta1", with.beta1, "in [0, 1)");
  need_option(with.beta2 >= 0 && with.beta2 < 1, Algorithm::name, "beta2", with.beta2, "in [0, 1)");
  need_option(with.eps >= 0, Algorithm::name, "eps", with.eps, "at least 0");
  need_option(with.weight_decay >= 0, Algorithm::name, "weight_decay", with.weight_decay, "at least 0");
}

template <class Algorithm>
adam_update adam_step(const typename Algorithm::options& with, std::int64_t step) {
  const auto t = static_cast<double>(step);
  return {.beta1 = with.beta1,
          .kept1 = 1 - with.beta1,
          .beta2 = with.beta2,
          .kept2 = 1 - with.beta2,
          .step_size = with.lr / (1 - std::pow(with.beta1, t)),
          .correction = std::sqrt(1 - std::pow(with.beta2, t)),
          .eps = with.eps,
          .weight_decay = decay_apart<Algorithm> ? 0 : with.weight_decay,
          .shrink = decay_apart<Algorithm> ? 1 - with.lr * with.weight_decay : 1,
          .amsgrad = with.amsgrad};
}

template <class Algorithm>
void keep_adam(std::size_t index, const tensor& parameter, adam::state& kept, const typename Algorithm::options& with) {
  need_kept(Algorithm::name, index, "mean", kept.mean, parameter, parameter.shape());
  need_kept(Algorithm::name, index, "square", kept.square, parameter, parameter.shape());
  if (!with.amsgrad) return;
  need_kept(Algorithm::name, index, "largest_square", kept.largest_square, parameter, parameter.shape());
}

update_operands adam_operands(const tensor& parameter, const tensor& gradient, const adam::state& kept, bool amsgrad) {
  return operands_of(parameter, gradient, kept.mean, kept.square, amsgrad ? kept.largest_square : parameter);
}

template <class Algorithm>
void update_adam(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<adam::state> states,
                 const typename Algorithm::options& with) {
  check_adam<Algorithm>(with);
  update_all(
      Algorithm::name, parameters, gradients, states,
      [&](std::size_t index, const tensor& parameter, adam::state& kept) {
        keep_adam<Algorithm>(index, parameter, kept, with);
      },
      [&](const tensor& parameter, const tensor& gradient, adam::state& kept) {
        apply_update(adam_operands(parameter, gradient, kept, with.amsgrad), adam_step<Algorithm>(with, ++kept.steps));
      });
}

template <class Algorithm>
void update_adam_rows(const tensor& parameter, const tensor& indices, const tensor& values, adam::state& kept,
                      const typename Algorithm::options& with) {
  check_adam<Algorithm>(with);
  const chosen_rows chosen = choose_rows(Algorithm::name, parameter, indices, values);
  if (chosen.count == 0) return;
  keep_adam<Algorithm>(0, parameter, kept, with);
  const tensor gradient = apart_from(values, parameter);
  apply_rows(adam_operands(parameter, gradient, kept, with.amsgrad), &chosen, adam_step<Algorithm>(with, ++kept.steps));
}

}  // namespace
}  // namespace detail

void adam::check(const options& with) { detail::check_adam<adam>(with); }
void adam::update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                  const options& with) {
  detail::update_adam<adam>(parameters, gradients, states, with);
}
void adam::update_rows(const tensor& parameter, const tensor& indices, const tensor& values, state& kept,
                       const options& with) {
  detail::update_adam_rows<adam>(parameter, indices, values, kept, with);
}

void adamw::check(const options& with) { detail::check_adam<adamw>(with); }
void adamw::update(std::span<const tensor> parameters, std::span<const tensor> gradients, std::span<state> states,
                   const options& with) {
  detail::update_adam<adamw>(parameters, gradients, states, with);
}
void adamw::update_rows(const tensor& parameter, const tensor& indices, const tensor& values, state& kept,
                        const options& with) {
  detail::update_adam_rows<adamw>(parameter, indices, values, kept, with);
}

}  // namespace ferry::inline v0
