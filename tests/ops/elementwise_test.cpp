// Functions of elements and comparisons at the edges of their numbers, and what they refuse.

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "tests/ops/operation_samples.hpp"

namespace elementwise_test {

using ferry::dtype;
using ferry::equal;
using ferry::errc;
using ferry::tensor;
using ferry::tensor_of;
using ferry_test::gpu;
using ferry_test::operation_sample;
using ferry_test::tensors;
using ferry_test::varied;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

bool same(const tensor& a, const tensor& b) { return ferry::allclose(a, b, 1e-6, 1e-7, true); }

// What the sample computes of numbers without a pattern, on the CPU and on a device.
template <class Op>
void check_device() {
  CAPTURE(Op::name);
  if (Op::needs.devices == ferry::device_set::cpu) return;
  tensors points;
  if constexpr (requires { operation_sample<Op>::points(); }) {
    points = operation_sample<Op>::points();
  } else {
    points = operation_sample<Op>::inputs({});
    for (tensor& each : points) each = varied(each.shape(), 0.5) * 2;
  }
  for (tensor& each : points) each = each.dtype() == dtype::f64 ? each.to(dtype::f32) : each;
  tensors there;
  tensors here;
  for (const tensor& each : points) {
    there.push_back(each.to(gpu));
    here.push_back(each.clone());
  }
  const tensors expected = operation_sample<Op>::run(here);
  const tensors found = operation_sample<Op>::run(there);
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i != found.size(); ++i) {
    CHECK(found[i].dtype() == expected[i].dtype());
    CHECK(same(found[i].to(ferry::device{}), expected[i]));
  }
}

}  // namespace

TEST_CASE("each operation gives the CPU's values on a device") {
  ferry::operations::for_each([]<class Op>(std::type_identity<Op>) { check_device<Op>(); });
}

TEST_CASE("functions of integers wrap") {
  const auto lowest = std::numeric_limits<std::int32_t>::min();
  const tensor t = tensor_of({lowest, -2, 0, 3});
  CHECK(equal(ferry::neg(t), tensor_of({lowest, 2, 0, -3})));
  CHECK(equal(ferry::abs(t), tensor_of({lowest, 2, 0, 3})));
  CHECK(equal(ferry::relu(t), tensor_of({0, 0, 0, 3})));
  CHECK(equal(ferry::maximum(t, tensor_of({0})), tensor_of({0, 0, 0, 3})));
  CHECK(equal(ferry::minimum(t, tensor_of({0})), tensor_of({lowest, -2, 0, 0})));
  CHECK(equal(-t.to(gpu).to(ferry::device{}), ferry::neg(t)));
}

TEST_CASE("NaN passes through, infinities are numbers") {
  const tensor t = tensor_of({not_a_number, inf, -inf, 0.});
  for (const auto function : {&ferry::neg, &ferry::abs, &ferry::relu, &ferry::exp, &ferry::log, &ferry::sqrt,
                              &ferry::tanh, &ferry::sigmoid, &ferry::silu, &ferry::gelu}) {
    CHECK(std::isnan(function(t).select(0, 0).item<double>()));
    CHECK(std::isnan(function(t.transpose(0, 0).to(gpu)).to(ferry::device{}).select(0, 0).item<double>()));
  }
  CHECK(same(ferry::relu(t), tensor_of({not_a_number, inf, 0., 0.})));
  CHECK(same(ferry::exp(t), tensor_of({not_a_number, inf, 0., 1.})));
  CHECK(same(ferry::sigmoid(t), tensor_of({not_a_number, 1., 0., 0.5})));
  CHECK(same(ferry::softplus(t), tensor_of({not_a_number, inf, 0., std::log(2.)})));
  CHECK(same(ferry::clamp(t, -1, 1), tensor_of({not_a_number, 1., -1., 0.})));
  CHECK(same(ferry::clamp(t, 2, 1), tensor_of({not_a_number, 1., 1., 1.})));
  CHECK(same(ferry::minimum(t, tensor_of(0.)), tensor_of({not_a_number, 0., -inf, 0.})));
  CHECK(same(ferry::maximum(tensor_of(0.), t), tensor_of({not_a_number, inf, 0., 0.})));
  CHECK(same(t / tensor_of(0.), tensor_of({not_a_number, inf, -inf, not_a_number})));
  CHECK(equal(ferry::eq(t, t), tensor_of({false, true, true, true})));
  CHECK(equal(ferry::ne(t, t), tensor_of({true, false, false, false})));
}

TEST_CASE("strided tensors and tensors without elements") {
  const tensor t = varied({3, 4}, 1);
  CHECK(equal(ferry::exp(t.transpose(0, 1)), ferry::exp(t).transpose(0, 1)));
  CHECK(equal(ferry::tanh(t.slice(1, 0, 4, 2)), ferry::tanh(t.slice(1, 0, 4, 2).clone())));
  CHECK(ferry::exp(ferry::zeros({0, 3})).shape() == ferry::dims{0, 3});
  CHECK(ferry::lt(ferry::zeros({2, 0}), 1).shape() == ferry::dims{2, 0});
}

TEST_CASE("comparisons and choices") {
  const tensor t = tensor_of({1, 5, 3});
  CHECK(equal(ferry::lt(t, 3), tensor_of({true, false, false})));
  CHECK(equal(ferry::le(t, 3), tensor_of({true, false, true})));
  CHECK(equal(ferry::gt(t, 3), tensor_of({false, true, false})));
  CHECK(equal(ferry::ge(t, tensor_of({{3}, {5}})), tensor_of({{false, true, true}, {false, true, false}})));
  CHECK(equal(ferry::where(ferry::gt(t, 2), t, tensor_of(0)), tensor_of({0, 5, 3})));
  CHECK(equal(ferry::where(tensor_of({true, false}), tensor_of({true, true}), tensor_of({false, false})),
              tensor_of({true, false})));
  CHECK(equal(ferry::masked_fill(t, ferry::eq(t, 5), -1), tensor_of({1, -1, 3})));
}

TEST_CASE("what does not fit is refused") {
  const tensor reals = ferry::ones({2, 3});
  expect_error(errc::bad_dtype, "exp works on f32 and f64, not on i64", [] { (void)ferry::exp(ferry::arange(3)); });
  expect_error(errc::bad_dtype, "neg works on i32, i64, f32 and f64, not on u8",
               [] { (void)ferry::neg(ferry::zeros({1}, dtype::u8)); });
  expect_error(errc::bad_dtype, "div of f32 and f64", [&] { (void)(reals / ferry::ones({3}, dtype::f64)); });
  expect_error(errc::bad_shape, "shapes [2, 3] and [2] do not fit", [&] { (void)ferry::pow(reals, ferry::ones({2})); });
  expect_error(errc::bad_dtype, "where: the condition is of f32", [&] { (void)ferry::where(reals, reals, reals); });
  expect_error(errc::bad_dtype, "where of f32 and i64",
               [&] { (void)ferry::where(ferry::gt(reals, 0), reals, ferry::arange(3)); });
  expect_error(errc::bad_device, "where of tensors on",
               [&] { (void)ferry::where(ferry::gt(reals, 0), reals, reals.to(gpu)); });
  expect_error(errc::bad_dtype, "masked_fill: the scalar 0.5 does not fit a tensor of i64",
               [] { (void)ferry::masked_fill(ferry::arange(3), ferry::eq(ferry::arange(3), 1), 0.5); });
  expect_error(errc::bad_dtype, "lt: the scalar 0.5 does not fit", [] { (void)ferry::lt(ferry::arange(3), 0.5); });
}

}  // namespace elementwise_test
