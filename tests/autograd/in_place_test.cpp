// Writes in place, and views, in the graph.

#include <array>
#include <stdexcept>
#include <string_view>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "gradient_check.hpp"

namespace in_place_test {

using ferry::errc;
using ferry::tensor;
using ferry_test::check_gradients;

using ferry_test::tensors;
using ferry_test::varied;

TEST_CASE("a value written in place has the history of the write") {
  check_gradients(
      [](const tensors& in) -> tensors {
        tensor y = in[0] * 2;
        ferry::add_(y, in[1], 3);
        ferry::mul_(y, in[1]);
        ferry::mul_(y, 0.5);
        return {y * in[0]};
      },
      {varied({4}, 1), varied({4}, 2)});
}

TEST_CASE("a write through a view is part of the history of the whole, and of other views") {
  check_gradients(
      [](const tensors& in) -> tensors {
        const tensor whole = in[0] * 2;
        const tensor row = whole.select(0, 1);
        const tensor column = whole.select(1, 2);
        const tensor before = row * 5;
        ferry::mul_(row, in[1]);
        ferry::add_(whole.slice(1, 1, 3), in[0].slice(1, 0, 2));
        row.slice(0, 0, 1).fill_(7);
        return {whole * in[0], column * column, row * 3, before};
      },
      {varied({3, 4}, 1), varied({4}, 2)});
}

TEST_CASE("a view of a transposed value") {
  check_gradients(
      [](const tensors& in) -> tensors {
        const tensor whole = in[0] * in[0];
        const tensor part = whole.transpose(0, 1).slice(0, 1, 3);
        part.copy_(in[1]);
        ferry::mul_(part, part.clone());
        return {whole};
      },
      {varied({3, 4}, 1), varied({2, 3}, 2)});
}

TEST_CASE("copies into a value pass the gradient on to their source") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor target = ferry::zeros({2}, ferry::dtype::f64);
  target.copy_(x * 3);
  CHECK(target.requires_grad());
  ferry::backward(ferry::sum(target * target));
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({18., 36.})));
}

TEST_CASE("a leaf is not written in place, but within no_grad") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  expect_error(errc::invalid_argument, "add_scalar_ in place on a leaf", [&] { ferry::add_(x, 1); });
  expect_error(errc::invalid_argument, "on a view of a leaf", [&] { x.slice(0, 1).fill_(0); });
  expect_error(errc::invalid_argument, "in place on a leaf", [&] { x.mark_written(); });
  CHECK(ferry::equal(ferry::detach(x), ferry::tensor_of({1., 2.})));
  {
    const ferry::no_grad outside;
    ferry::add_(x, 1);
    x.slice(0, 1).fill_(0);
  }
  CHECK(ferry::equal(ferry::detach(x), ferry::tensor_of({2., 0.})));
  CHECK(x.requires_grad());
  ferry::backward(ferry::sum(x));
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({1., 1.})));
}

TEST_CASE("elements that a formula needs and that were written since are noticed") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor factor = ferry::tensor_of({3., 4.});
  const tensor y = ferry::sum(x * factor);
  factor.fill_(0);
  expect_error(errc::invalid_argument, "was written in place after the operation: its version is 1 instead of 0",
               [&] { ferry::backward(y); });
  expect_error(errc::invalid_argument, "backward of mul (node ", [&] { ferry::backward(y); });
}

TEST_CASE("an external write to a value is refused, since no formula follows it") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor y = x * 2;
  expect_error(errc::invalid_argument, "written by hand", [&] { y.mark_written(); });
}

TEST_CASE("a target that shares its elements enters the graph as a whole, or not at all") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor whole = ferry::zeros({4}, ferry::dtype::f64);
  expect_error(errc::invalid_argument, "shares its elements", [&] { whole.slice(0, 0, 2).copy_(x); });
  expect_error(errc::invalid_argument, "shares its elements", [&] { whole.view({2, 2}).copy_(x); });
  {
    const tensor part = whole.slice(0, 0, 2);
    expect_error(errc::invalid_argument, "shares its elements", [&] { whole.copy_(x.select(0, 0)); });
  }
  whole.copy_(x.select(0, 0));
  CHECK(whole.requires_grad());
}

TEST_CASE("a view that was made within no_grad is written within no_grad") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2., 3.}));
  const tensor y = x * 1;
  tensor part;
  tensor of_leaf;
  {
    const ferry::no_grad outside;
    part = y.slice(0, 0, 2).view({2, 1});
    of_leaf = x.slice(0, 0, 2);
    part.fill_(4);
  }
  CHECK(!part.requires_grad());
  expect_error(errc::invalid_argument, "made within ferry::no_grad", [&] { part.fill_(0); });
  expect_error(errc::invalid_argument, "made within ferry::no_grad", [&] { of_leaf.fill_(0); });
  CHECK((part * 2).at<double>(0, 0) == 8);
}

TEST_CASE("operands in place that overlap their target") {
  check_gradients(
      [](const tensors& in) -> tensors {
        const tensor y = in[0] * 2;
        ferry::mul_(y, y);
        ferry::mul_(y, y.select(0, 1));
        ferry::mul_(y.slice(0, 0, 2), y.slice(0, 1, 3));
        return {y};
      },
      {varied({4}, 1)});
}

TEST_CASE("elements that share memory have the sum of the gradients") {
  check_gradients(
      [](const tensors& in) -> tensors {
        const tensor y = in[0] * 2;
        const tensor repeated = y.slice(0, 0, 1).expand({3});
        const tensor windows = y.as_strided({3, 2}, {1, 1}, 0);
        const tensor beyond = y.slice(0, 2, 4).as_strided({4}, {1}, 0);
        const tensor before = ferry::sum(windows * 5) + ferry::sum(beyond);
        ferry::mul_(y, 3);
        return {repeated * in[1].select(1, 0), windows, beyond, before};
      },
      {varied({4}, 1), varied({3, 2}, 2)});
  const tensor x = ferry::require_grad(ferry::tensor_of({1.}));
  ferry::backward(ferry::sum(x.expand({3}).as_strided({2}, {0}, 0)));
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({2.})));
  const tensor repeated = ferry::require_grad(ferry::tensor_of({1.}).expand({3}));
  expect_error(errc::invalid_argument, "as_strided of a leaf whose elements share memory",
               [&] { (void)repeated.as_strided({2}, {0}, 0); });
  const tensor inner = ferry::require_grad(ferry::tensor_of({1., 2., 3.}).slice(0, 1, 2));
  expect_error(errc::invalid_argument, "beyond the tensor", [&] { (void)inner.view({1}).as_strided({2}, {1}, 0); });
}

// Writes, and throws.
struct failing_ : ferry_test::operation_on_one<ferry::operation_kind::in_place> {
  static constexpr std::string_view name = "test.failing_";

 private:
  friend struct ferry::operation_access;
  static void compute(const parameters&, const tensor& t) {
    t.fill_(7);
    throw std::runtime_error("of the user");
  }
};

}  // namespace in_place_test
template <>
struct ferry::derivative<in_place_test::failing_> {
  static constexpr ferry::derivative_keeps keeps{.inputs = true};
  static std::array<tensor, 1> backward(const in_place_test::failing_::parameters&, const ferry::backward_run&,
                                        const tensor& gradient) {
    return {gradient};
  }
};

namespace in_place_test {

TEST_CASE("an operation in place that throws leaves a value without a gradient, not with a wrong one") {
  ferry::register_derivative<failing_>();
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor y = x * 3;
  CHECK_THROWS_AS(ferry::run_operation<failing_>({}, y), std::runtime_error);
  expect_error(errc::invalid_argument, "has thrown while it wrote", [&] { ferry::backward(ferry::sum(y)); });
  ferry::backward(ferry::sum(x * 3));
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({3., 3.})));
}

TEST_CASE("a write in place that is refused writes nothing") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor counts = ferry::arange(2);
  const tensor copy = counts.clone();
  expect_error(errc::bad_dtype, "in place on a tensor of i64", [&] { counts.copy_(x); });
  CHECK(ferry::equal(counts, copy));
  CHECK(counts.version() == 0);
}

}  // namespace in_place_test
