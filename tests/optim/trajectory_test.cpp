// The trajectories of PyTorch's optimizers, and convergence.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>

#include "problems.hpp"
#include "torch_trajectories.hpp"

namespace trajectory_test {

using ferry::dtype;
using ferry::tensor;

namespace {

// The problem of record_torch.py, by backward().
template <class Algorithm>
void check_trajectory(const std::string& name, const torch_trajectories::trajectory& expected,
                      const typename Algorithm::options& with, dtype type = dtype::f64, double tolerance = 1e-12) {
  CAPTURE(name);
  const tensor p = ferry::require_grad(ferry::tensor_of({{1., -2.}, {.5, 3.}}).to(type));
  const tensor q = ferry::require_grad(ferry::tensor_of({-1.5}).to(type));
  const tensor p_scale = ferry::tensor_of({{1., .3}, {2.5, .7}}).to(type);
  const tensor q_scale = ferry::tensor_of({1.5}).to(type);
  const tensor p_goal = ferry::tensor_of({{.2, .1}, {-.4, 2.}}).to(type);
  const tensor q_goal = ferry::tensor_of({.7}).to(type);
  const auto loss = [](const tensor& t, const tensor& scale, const tensor& goal) {
    const tensor off = t - goal;
    return ferry::sum(off * off * scale) * 0.5;
  };
  ferry::optimizer<Algorithm> optimizer({p, q}, with);
  double worst = 0;
  for (int step = 0; step != torch_trajectories::steps; ++step) {
    optimizer.zero_grad();
    ferry::backward(loss(p, p_scale, p_goal));
    if (step != 3 && step != 4) ferry::backward(loss(q, q_scale, q_goal));
    optimizer.step();
    const tensor here = ferry::detach(p).to(dtype::f64).contiguous();
    for (int i = 0; i != 5; ++i) {
      const double found = i != 4 ? here.data<double>()[i] : ferry::detach(q).to(dtype::f64).item<double>();
      const double wanted = expected[static_cast<std::size_t>(step * 5 + i)];
      worst = std::max(worst, std::fabs(found - wanted) / std::max(1.0, std::fabs(wanted)));
    }
  }
  CHECK(worst <= tolerance);
}

void check_all(dtype type, double tolerance) {
  namespace torch = torch_trajectories;
  const auto sgd = [&](const char* name, const torch::trajectory& expected, const ferry::sgd::options& with) {
    check_trajectory<ferry::sgd>(name, expected, with, type, tolerance);
  };
  sgd("sgd_plain", torch::sgd_plain, {.lr = 0.1});
  sgd("sgd_momentum", torch::sgd_momentum, {.lr = 0.05, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01});
  sgd("sgd_nesterov", torch::sgd_nesterov, {.lr = 0.01, .momentum = 1, .weight_decay = 1, .nesterov = true});
  check_trajectory<ferry::adagrad>("adagrad_plain", torch::adagrad_plain, {.lr = 0.5}, type, tolerance);
  check_trajectory<ferry::adagrad>(
      "adagrad_full", torch::adagrad_full,
      {.lr = 0.5, .lr_decay = 0.1, .weight_decay = 0.02, .initial_accumulator = 0.3, .eps = 1e-6}, type, tolerance);
  check_trajectory<ferry::adam>("adam_plain", torch::adam_plain, {.lr = 0.1}, type, tolerance);
  check_trajectory<ferry::adam>("adam_amsgrad", torch::adam_amsgrad,
                                {.lr = 0.2, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.05, .amsgrad = true}, type,
                                tolerance);
  check_trajectory<ferry::adamw>("adamw_plain", torch::adamw_plain, {.lr = 0.1}, type, tolerance);
  check_trajectory<ferry::adamw>("adamw_amsgrad", torch::adamw_amsgrad,
                                 {.lr = 0.2, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.05, .amsgrad = true}, type,
                                 tolerance);
  check_trajectory<ferry::adadelta>("adadelta_plain", torch::adadelta_plain, {}, type, tolerance);
  check_trajectory<ferry::adadelta>("adadelta_decay", torch::adadelta_decay,
                                    {.lr = 0.7, .rho = 0.8, .eps = 1e-3, .weight_decay = 0.1}, type, tolerance);
  check_trajectory<ferry::rmsprop>("rmsprop_plain", torch::rmsprop_plain, {.lr = 0.05}, type, tolerance);
  check_trajectory<ferry::rmsprop>(
      "rmsprop_full", torch::rmsprop_full,
      {.lr = 0.02, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1, .momentum = 0.8, .centered = true}, type, tolerance);
  check_trajectory<ferry::adamax>("adamax_plain", torch::adamax_plain, {.lr = 0.1}, type, tolerance);
  check_trajectory<ferry::adamax>("adamax_decay", torch::adamax_decay,
                                  {.lr = 0.1, .beta1 = 0.7, .beta2 = 0.9, .weight_decay = 0.2}, type, tolerance);
  check_trajectory<ferry::rprop>("rprop_plain", torch::rprop_plain, {.lr = 0.1}, type, tolerance);
  check_trajectory<ferry::rprop>("rprop_bounds", torch::rprop_bounds,
                                 {.lr = 0.1, .eta_minus = 0.4, .eta_plus = 1.5, .step_min = 0.01, .step_max = 0.3},
                                 type, tolerance);
}

template <class Algorithm>
void check_convergence(double start, double tolerance, int steps, const typename Algorithm::options& with) {
  CAPTURE(Algorithm::name);
  const tensor p = ferry::require_grad(ferry::full({2}, start, dtype::f64));
  const tensor scale = ferry::tensor_of({1., 4.});
  const tensor goal = ferry::tensor_of({0.5, -0.25});
  ferry::optimizer<Algorithm> optimizer({p}, with);
  for (int step = 0; step != steps; ++step) {
    optimizer.zero_grad();
    const tensor off = p - goal;
    ferry::backward(ferry::sum(off * off * scale));
    optimizer.step();
  }
  CHECK(std::fabs(p.at<double>(0) - 0.5) <= tolerance);
  CHECK(std::fabs(p.at<double>(1) + 0.25) <= tolerance);
}

}  // namespace

TEST_CASE("20 steps in f64 are PyTorch's") { check_all(dtype::f64, 1e-12); }

TEST_CASE("20 steps in f32 are near those in f64") { check_all(dtype::f32, 2e-5); }

TEST_CASE("every algorithm finds the minimum of a quadratic function of two variables") {
  check_convergence<ferry::sgd>(1, 1e-6, 200, {.lr = 0.1});
  check_convergence<ferry::sgd>(1, 1e-6, 400, {.lr = 0.02, .momentum = 0.9, .nesterov = true});
  check_convergence<ferry::adam>(1, 1e-4, 1000, {.lr = 0.05});
  check_convergence<ferry::adam>(1, 1e-4, 1000, {.lr = 0.05, .amsgrad = true});
  check_convergence<ferry::adamw>(1, 1e-4, 1000, {.lr = 0.05, .weight_decay = 0});
  check_convergence<ferry::adagrad>(1, 1e-6, 500, {.lr = 0.5});
  check_convergence<ferry::row_wise_adagrad>(1, 1e-6, 500, {.lr = 0.5});
  check_convergence<ferry::ftrl>(0, 1e-6, 500, {.lr = 1});
  check_convergence<ferry::rmsprop>(1, 1e-2, 1000, {.lr = 0.005});
  check_convergence<ferry::rmsprop>(1, 1e-2, 1000, {.lr = 0.002, .momentum = 0.5, .centered = true});
  check_convergence<ferry::adadelta>(1, 1e-2, 2000, {.lr = 1, .eps = 1e-4});
  check_convergence<ferry::adamax>(1, 1e-4, 1000, {.lr = 0.05});
  check_convergence<ferry::rprop>(1, 1e-4, 200, {.lr = 0.1});
}

}  // namespace trajectory_test
