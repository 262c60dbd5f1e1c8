// The formula of each operation against differences of values.

#include <limits>
#include <type_traits>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/autograd/derivatives/derivatives.hpp>
#include <ferry/ops/ops.hpp>

#include "gradient_check.hpp"
#include "tests/ops/operation_samples.hpp"
#include "tests/tensor/operation_samples.hpp"

namespace formulas_test {

using ferry::tensor;
using ferry_test::check_gradients;
using ferry_test::operation_sample;
using ferry_test::tensors;
using ferry_test::varied;

namespace {

// Where the sample's formula is checked.
template <class Op>
tensors points_of() {
  if constexpr (requires { operation_sample<Op>::points(); }) {
    return operation_sample<Op>::points();
  } else {
    tensors points;
    for (const tensor& each : operation_sample<Op>::inputs({}))
      points.push_back(varied(each.shape(), 0.5 + points.size()));
    return points;
  }
}

template <class Op>
void check_formula() {
  if constexpr (!requires { ferry::derivative<Op>::none; }) {
    CAPTURE(Op::name);
    const tensors points = points_of<Op>();
    if (Op::kind == ferry::operation_kind::in_place || !ferry_test::plain(operation_sample<Op>::run(points)[0])) {
      // What the sample converts to, or where, is not what differences are taken of.
      check_gradients(
          [](const tensors& in) {
            tensors own;
            for (const tensor& each : in) own.push_back(ferry_test::plain(each) ? each * 1 : each);
            tensors results = operation_sample<Op>::run(own);
            for (tensor& each : results) each = each.to(ferry::dtype::f64).to(ferry::device{});
            return results;
          },
          points, 1e-3);
    } else {
      check_gradients(operation_sample<Op>::run, points);
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("the formulas of operations", List, ferry::tensor_operations, ferry::operations) {
  List::for_each([]<class Op>(std::type_identity<Op>) { check_formula<Op>(); });
}

TEST_CASE("broadcasting sums the gradient over the axes that were stretched") {
  check_gradients([](const tensors& in) -> tensors { return {in[0] * in[1] + in[2] - in[3]}; },
                  {varied({2, 3, 4}, 1), varied({3, 1}, 2), varied({}, 3), varied({2, 1, 4}, 4)});
}

TEST_CASE("sums over axes") {
  check_gradients(
      [](const tensors& in) -> tensors {
        return {ferry::sum(in[0], {0, -1}), ferry::sum(in[0], {1}, true), ferry::sum(in[0]), ferry::sum(in[0], {})};
      },
      {varied({2, 3, 4}, 1)});
}

TEST_CASE("views of views") {
  check_gradients(
      [](const tensors& in) -> tensors {
        return {in[0].permute({2, 0, 1}).slice(1, 1).flatten(0, 1).unsqueeze(1).expand({4, 2, 3}),
                in[0].as_strided({2, 2}, {1, 5}, 3)};
      },
      {varied({2, 3, 4}, 1)});
}

TEST_CASE("slopes at the edges of their numbers") {
  const auto slope_of = [](const auto& function, float at, float gradient) {
    const tensor x = ferry::require_grad(ferry::tensor_of({at}));
    ferry::backward(function(x), {.gradients = {ferry::tensor_of({gradient})}});
    return ferry::grad(x).template item<float>();
  };
  constexpr float inf = std::numeric_limits<float>::infinity();
  CHECK(slope_of([](const tensor& x) { return ferry::relu(x); }, -1, inf) == 0);
  CHECK(slope_of([](const tensor& x) { return ferry::clamp(x, 0, 1); }, 2, inf) == 0);
  CHECK(slope_of([](const tensor& x) { return ferry::maximum(x, ferry::tensor_of({1.F})); }, 0, inf) == 0);
  for (const float size : {1e25F, 1e-25F}) {
    const auto quotient = [&](const tensor& x) { return ferry::tensor_of({size}) / x; };
    CHECK(slope_of(quotient, size, 1) == doctest::Approx(-1 / size));
  }
  CHECK(slope_of([](const tensor& x) { return ferry::softplus(x, 1, inf); }, 1000, 1) == 1);
  CHECK(ferry::softplus(ferry::tensor_of({1000.F}), 1, inf).item<float>() == 1000);
}

}  // namespace formulas_test
