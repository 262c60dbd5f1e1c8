// The pure functions: what they leave alone, what they refuse, layouts, values by hand.

#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "problems.hpp"

namespace update_test {

using ferry::dtype;
using ferry::errc;
using ferry::tensor;
using problems::for_each_algorithm;
using problems::near;
using problems::pull;

namespace {

template <class Algorithm>
void step(const tensor& parameter, const tensor& gradient, typename Algorithm::state& kept,
          const typename Algorithm::options& with) {
  Algorithm::update({&parameter, 1}, {&gradient, 1}, {&kept, 1}, with);
}

template <class Algorithm>
void refuse_option(const char* text, const typename Algorithm::options& with) {
  expect_error(errc::invalid_argument, text, [&] { Algorithm::check(with); });
  expect_error(errc::invalid_argument, text,
               [&] { ferry::optimizer<Algorithm>({ferry::zeros({2}, dtype::f64)}, with); });
  expect_error(errc::invalid_argument, text, [&] { Algorithm::update({}, {}, {}, with); });
}

}  // namespace

TEST_CASE("a parameter without a gradient, and its state, stay as they are") {
  for_each_algorithm([]<class Algorithm>(std::type_identity<Algorithm>) {
    CAPTURE(Algorithm::name);
    const auto with = problems::full_options<Algorithm>();
    const std::vector<tensor> parameters{ferry::ones({2, 2}, dtype::f64), ferry::ones({3}, dtype::f64)};
    std::vector<typename Algorithm::state> states(2);
    const auto update = [&](const tensor& second) {
      Algorithm::update(parameters, std::vector{pull(parameters[0]), second}, states, with);
    };
    update(pull(parameters[1]));
    const tensor before = parameters[1].clone();
    const std::uint64_t version = parameters[1].version();
    auto kept = states[1];
    kept.visit_tensors([](std::string_view, tensor& t) { t = t.clone(); });
    update({});
    CHECK(ferry::equal(parameters[1], before));
    CHECK(parameters[1].version() == version);
    problems::for_each_pair(kept, states[1], [](auto, const tensor& a, const tensor& b) { CHECK(ferry::equal(a, b)); });
    if constexpr (requires { kept.steps; }) {
      CHECK(states[1].steps == 1);
      CHECK(states[0].steps == 2);
    }
    CHECK(parameters[0].version() == 2);
  });
}

TEST_CASE("leaves that require a gradient are written in place, outside of the graph") {
  for_each_algorithm([]<class Algorithm>(std::type_identity<Algorithm>) {
    CAPTURE(Algorithm::name);
    const tensor p = ferry::require_grad(ferry::ones({2}, dtype::f64));
    const tensor same = p;
    const std::uint64_t version = p.version();
    typename Algorithm::state kept;
    step<Algorithm>(p, pull(p), kept, {});
    CHECK(p.version() == version + 1);
    CHECK(ferry::is_leaf(p));
    CHECK(p.requires_grad());
    CHECK(same.at<double>(0) != 1);
    CHECK(ferry::grad_enabled());
    // Elements that a formula still needs were overwritten: the pass notices.
    const tensor y = ferry::sum(p * p);
    step<Algorithm>(p, pull(p), kept, {});
    CHECK_THROWS_AS(ferry::backward(y), ferry::error);
  });
}

TEST_CASE("strided parameters and gradients are updated as contiguous ones") {
  for_each_algorithm([]<class Algorithm>(std::type_identity<Algorithm>) {
    CAPTURE(Algorithm::name);
    for (const dtype type : {dtype::f32, dtype::f64}) {
      const auto with = problems::full_options<Algorithm>();
      const tensor whole = ferry::zeros({5, 6, 4}, type);
      const tensor p = whole.slice(1, 1, 6, 2).transpose(0, 2);  // [4, 3, 5]
      p.copy_(ferry::arange(0, 60).to(type).view({4, 3, 5}) * 0.125);
      const tensor q = p.clone();
      typename Algorithm::state p_kept;
      typename Algorithm::state q_kept;
      for (int round = 0; round != 3; ++round) {
        const tensor g = pull(q);
        step<Algorithm>(p, g.transpose(0, 1).contiguous().transpose(0, 1), p_kept, with);
        step<Algorithm>(q, g, q_kept, with);
      }
      CHECK(near(p, q, type == dtype::f64 ? 1e-14 : 1e-6));
      CHECK(ferry::equal(whole.slice(1, 0, 6, 2), ferry::zeros({5, 3, 4}, type)));  // what lies between
    }
  });
}

TEST_CASE("a gradient that is the parameter itself, or overlaps it, is read before the write") {
  const tensor whole = ferry::tensor_of({1., 2., 3.});
  ferry::sgd::state kept;
  step<ferry::sgd>(whole.slice(0, 1), whole.slice(0, 0, 2), kept, {.lr = 1});
  CHECK(ferry::equal(whole, ferry::tensor_of({1., 1., 1.})));
  step<ferry::sgd>(whole, whole, kept, {.lr = 0.25});
  CHECK(ferry::equal(whole, ferry::full({3}, 0.75, dtype::f64)));
}

TEST_CASE("parameters without elements, and no parameters at all") {
  for_each_algorithm([]<class Algorithm>(std::type_identity<Algorithm>) {
    typename Algorithm::state kept;
    const auto with = problems::full_options<Algorithm>();
    step<Algorithm>(ferry::zeros({0, 3}), ferry::zeros({0, 3}), kept, with);
    kept = {};
    step<Algorithm>(ferry::zeros({3, 0}), ferry::zeros({3, 0}), kept, with);
    Algorithm::update({}, {}, {}, with);
  });
}

TEST_CASE("FTRL by hand") {
  // alpha 0.5, beta 1, l1 0.1, l2 0.2; gradients 2, then -1.
  const ferry::ftrl::options with{.lr = 0.5, .beta = 1, .l1 = 0.1, .l2 = 0.2};
  const tensor p = ferry::tensor_of({0.});
  ferry::ftrl::state kept;
  step<ferry::ftrl>(p, ferry::tensor_of({2.}), kept, with);
  // z = 2, n = 4: p = -(2 - 0.1) / ((1 + 2) / 0.5 + 0.2)
  const double first = -1.9 / 6.2;
  CHECK(p.item<double>() == doctest::Approx(first).epsilon(1e-14));
  step<ferry::ftrl>(p, ferry::tensor_of({-1.}), kept, with);
  // sigma = (sqrt 5 - 2) / 0.5, z = 2 - 1 - sigma p, n = 5
  const double z = 1 - (std::sqrt(5.) - 2) / 0.5 * first;
  CHECK(kept.linear.item<double>() == doctest::Approx(z).epsilon(1e-14));
  CHECK(kept.sum.item<double>() == 5);
  CHECK(p.item<double>() == doctest::Approx(-(z - 0.1) / ((1 + std::sqrt(5.)) / 0.5 + 0.2)).epsilon(1e-14));
  // Small z: exactly 0.
  const tensor small = ferry::tensor_of({0.});
  kept = {};
  step<ferry::ftrl>(small, ferry::tensor_of({-0.0625}), kept, with);
  CHECK(small.item<double>() == 0);
  CHECK(kept.linear.item<double>() == -0.0625);
}

TEST_CASE("row-wise Adagrad by hand") {
  const ferry::row_wise_adagrad::options with{.lr = 0.5, .initial_accumulator = 1, .eps = 0};
  const tensor p = ferry::tensor_of({{1., 2.}, {3., 4.}});
  ferry::row_wise_adagrad::state kept;
  step<ferry::row_wise_adagrad>(p, ferry::tensor_of({{1., 7.}, {0., 4.}}), kept, with);
  // Means of squares: 25 and 8.
  CHECK(near(kept.sum, ferry::tensor_of({26., 9.}), 1e-15));
  CHECK(near(p, ferry::tensor_of({{1 - 0.5 / std::sqrt(26.), 2 - 3.5 / std::sqrt(26.)}, {3., 4 - 2. / 3}}), 1e-14));
  expect_error(errc::bad_shape, "row_wise_adagrad: parameter 0 has no axes",
               [&] { step<ferry::row_wise_adagrad>(ferry::tensor_of(1.), ferry::tensor_of(1.), kept, with); });
}

TEST_CASE("what does not fit is refused by the name of the parameter, and nothing is written") {
  const std::vector<tensor> parameters{ferry::ones({2}), ferry::ones({2, 3})};
  std::vector<ferry::adam::state> states(2);
  const auto refuse = [&](errc code, const char* text, const tensor& gradient) {
    expect_error(code, text, [&] {
      ferry::adam::update(parameters, std::vector{ferry::ones({2}), gradient}, states, {});
    });
    CHECK(ferry::equal(parameters[0], ferry::ones({2})));
    CHECK(parameters[0].version() == 0);
    CHECK(states[0].steps == 0);
  };
  refuse(errc::bad_shape, "adam: the gradient of parameter 1 is f32 [3, 2] on cpu, the parameter f32 [2, 3] on cpu",
         ferry::ones({3, 2}));
  refuse(errc::bad_dtype, "adam: the gradient of parameter 1 is f64", ferry::ones({2, 3}, dtype::f64));
  states[1].square = ferry::ones({3});
  refuse(errc::bad_shape, "adam: square in the state of parameter 1 is f32 [3]", ferry::ones({2, 3}));
  states[1].square = ferry::ones({3}).expand({2, 3});
  refuse(errc::bad_shape, "more than once", ferry::ones({2, 3}));

  const auto update = [](const tensor& parameter) {
    ferry::sgd::state kept;
    step<ferry::sgd>(parameter, parameter, kept, {});
  };
  expect_error(errc::invalid_argument, "sgd: parameter 0 is undefined", [&] { update({}); });
  expect_error(errc::bad_dtype, "sgd: parameter 0 is of i64: only f32 and f64", [&] { update(ferry::arange(3)); });
  expect_error(errc::bad_shape, "more than once", [&] { update(ferry::ones({1}).expand({3})); });
  expect_error(errc::invalid_argument, "adam: 0 gradients and 2 states for 2 parameters",
               [&] { ferry::adam::update(parameters, {}, states, {}); });
}

TEST_CASE("options are checked as PyTorch does") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  refuse_option<ferry::sgd>("sgd: the option lr is -1; it must be at least 0", {.lr = -1});
  refuse_option<ferry::sgd>("the option lr is nan", {.lr = nan});
  refuse_option<ferry::sgd>("the option momentum is -0.5", {.momentum = -0.5});
  refuse_option<ferry::sgd>("the option weight_decay is -1", {.weight_decay = -1});
  refuse_option<ferry::sgd>("momentum is 0; it must be above 0 with nesterov", {.nesterov = true});
  refuse_option<ferry::sgd>("dampening is 0.5; it must be 0 with nesterov",
                            {.momentum = 0.9, .dampening = 0.5, .nesterov = true});
  refuse_option<ferry::adam>("adam: the option beta1 is 1; it must be in [0, 1)", {.beta1 = 1});
  refuse_option<ferry::adam>("the option beta2 is -0.1", {.beta2 = -0.1});
  refuse_option<ferry::adam>("the option eps is -1", {.eps = -1});
  refuse_option<ferry::adamw>("adamw: the option weight_decay is -0.25", {.weight_decay = -0.25});
  refuse_option<ferry::adagrad>("the option lr_decay is -1", {.lr_decay = -1});
  refuse_option<ferry::adagrad>("the option initial_accumulator is -1", {.initial_accumulator = -1});
  refuse_option<ferry::row_wise_adagrad>("row_wise_adagrad: the option eps is -1", {.eps = -1});
  refuse_option<ferry::ftrl>("ftrl: the option lr is 0; it must be above 0", {.lr = 0});
  refuse_option<ferry::ftrl>("the option l1 is -1", {.l1 = -1});
  refuse_option<ferry::rmsprop>("the option alpha is -1", {.alpha = -1});
  refuse_option<ferry::adadelta>("the option rho is 1.5; it must be in [0, 1]", {.rho = 1.5});
  refuse_option<ferry::adamax>("the option beta2 is 1", {.beta2 = 1});
  refuse_option<ferry::rprop>("the option eta_minus is 1; it must be in (0, 1)", {.eta_minus = 1});
  refuse_option<ferry::rprop>("the option eta_plus is 1", {.eta_plus = 1});
  refuse_option<ferry::rprop>("the option step_max is 1; it must be at least step_min", {.step_min = 2, .step_max = 1});
}

}  // namespace update_test
