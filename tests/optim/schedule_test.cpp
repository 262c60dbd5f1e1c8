// Learning rates and bounds on gradients.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "problems.hpp"

namespace schedule_test {

using doctest::Approx;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;

TEST_CASE("schedules are functions of the number of steps") {
  CHECK(ferry::linear_warmup(0, 4) == 0);
  CHECK(ferry::linear_warmup(1, 4) == 0.25);
  CHECK(ferry::linear_warmup(4, 4) == 1);
  CHECK(ferry::linear_warmup(100, 4) == 1);
  CHECK(ferry::linear_warmup(2, 4, 0.5) == 0.75);

  CHECK(ferry::step_decay(0, 10) == 1);
  CHECK(ferry::step_decay(9, 10) == 1);
  CHECK(ferry::step_decay(10, 10) == Approx(0.1));
  CHECK(ferry::step_decay(29, 10, 0.5) == 0.25);

  CHECK(ferry::multi_step_decay(29, {30, 80}) == 1);
  CHECK(ferry::multi_step_decay(30, {80, 30}) == Approx(0.1));
  CHECK(ferry::multi_step_decay(80, {30, 80}, 0.5) == 0.25);
  CHECK(ferry::multi_step_decay(80, std::vector<std::int64_t>{}) == 1);

  CHECK(ferry::exponential_decay(0, 0.9) == 1);
  CHECK(ferry::exponential_decay(3, 0.5) == 0.125);

  CHECK(ferry::cosine_decay(0, 8) == 1);
  CHECK(ferry::cosine_decay(2, 8) == Approx((1 + std::sqrt(0.5)) / 2).epsilon(1e-14));
  CHECK(ferry::cosine_decay(4, 8) == Approx(0.5).epsilon(1e-14));
  CHECK(ferry::cosine_decay(8, 8, 0.1) == 0.1);
  CHECK(ferry::cosine_decay(1000, 8, 0.1) == 0.1);

  expect_error(errc::invalid_argument, "cosine_decay: the step is -1", [] { (void)ferry::cosine_decay(-1, 8); });
  expect_error(errc::invalid_argument, "step_decay: the number of steps is 0", [] { (void)ferry::step_decay(1, 0); });
  expect_error(errc::invalid_argument, "exponential_decay: the factor is -1",
               [] { (void)ferry::exponential_decay(1, -1); });
}

TEST_CASE("values of gradients are bounded") {
  const tensor p = ferry::require_grad(ferry::zeros({4}));
  const tensor q = ferry::require_grad(ferry::zeros({2}));  // has no gradient
  ferry::set_grad(p, ferry::tensor_of({-3.F, -0.5F, 0.25F, 7.F}));
  const std::vector<tensor> parameters{p, q};
  const std::uint64_t version = ferry::grad(p).version();
  ferry::clip_grad_value_(parameters, 0.5);
  CHECK(ferry::equal(ferry::grad(p), ferry::tensor_of({-0.5F, -0.5F, 0.25F, 0.5F})));
  CHECK(ferry::grad(p).version() == version + 1);
  CHECK_FALSE(ferry::grad(q).defined());
  expect_error(errc::invalid_argument, "clip_value_: the option limit is -1",
               [&] { ferry::clip_grad_value_(parameters, -1); });
  const std::vector<tensor> integers{ferry::arange(3)};
  expect_error(errc::bad_dtype, "clip_value_: parameter 0 is of i64", [&] { ferry::clip_value_(integers, 1); });
}

TEST_CASE("the norm of all gradients is bounded, and returned as it was") {
  const tensor p = ferry::require_grad(ferry::zeros({2, 2}, dtype::f64));
  const tensor q = ferry::require_grad(ferry::zeros({1}));
  const tensor unused = ferry::require_grad(ferry::zeros({1}));
  const std::vector<tensor> parameters{p, unused, q};
  ferry::set_grad(p, ferry::tensor_of({{1., -2.}, {4., 2.}}));
  ferry::set_grad(q, ferry::tensor_of({12.F}));
  CHECK(ferry::clip_grad_norm_(parameters, 14).item<double>() == 13);
  CHECK(ferry::grad(q).item<float>() == 12);  // below: as it was
  constexpr double unbounded = std::numeric_limits<double>::infinity();
  CHECK(ferry::clip_grad_norm_(parameters, unbounded).item<double>() == 13);
  ferry::clip_grad_value_(parameters, unbounded);
  CHECK(ferry::grad(q).item<float>() == 12);
  CHECK(ferry::clip_grad_norm_(parameters, 6.5).item<double>() == 13);
  const double factor = 6.5 / (13 + 1e-6);
  CHECK(problems::near(ferry::grad(p), ferry::tensor_of({{1., -2.}, {4., 2.}}) * factor, 1e-14));
  CHECK(ferry::grad(q).item<float>() == Approx(12 * factor).epsilon(1e-6));
  CHECK(ferry::clip_grad_norm_(std::vector<tensor>{unused}, 1).item<double>() == 0);
  CHECK(ferry::clip_grad_norm_({}, 1).item<double>() == 0);
  ferry::set_grad(unused, ferry::tensor_of({std::numeric_limits<float>::infinity()}));
  CHECK(ferry::clip_grad_norm_(parameters, unbounded).item<double>() == unbounded);
  CHECK(ferry::grad(unused).item<float>() == std::numeric_limits<float>::infinity());
  expect_error(errc::invalid_argument, "clip_norm_: the option most is -inf; it must be at least 0",
               [&] { ferry::clip_grad_norm_(parameters, -unbounded); });
  expect_error(errc::invalid_argument, "clip_norm_: the option most is nan",
               [&] { ferry::clip_grad_norm_(parameters, std::numeric_limits<double>::quiet_NaN()); });
}

TEST_CASE("the norm of strided and of large gradients") {
  const tensor whole = ferry::full({64, 100}, 0.5, dtype::f64);
  const std::vector<tensor> gradients{whole.slice(1, 0, 100, 2).transpose(0, 1)};
  CHECK(ferry::clip_norm_(gradients, 1).item<double>() == Approx(std::sqrt(3200 * 0.25)).epsilon(1e-14));
  CHECK(whole.at<double>(0, 0) == Approx(0.5 / std::sqrt(800.)).epsilon(1e-6));
  CHECK(whole.at<double>(0, 1) == 0.5);
}

}  // namespace schedule_test
