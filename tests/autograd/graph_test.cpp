// What requires a gradient, and what backward() adds to it.

#include <limits>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "gradient_check.hpp"

namespace graph_test {

using ferry::errc;
using ferry::tensor;
using ferry_test::check_gradients;

using ferry_test::tensors;
using ferry_test::varied;

TEST_CASE("the gradient of a Huber loss at an infinite distance is that of its straight part") {
  const tensor x = ferry::require_grad(ferry::tensor_of({std::numeric_limits<double>::infinity(), 0.5, -3.}));
  ferry::backward(ferry::huber_loss(x, ferry::zeros({3}, ferry::dtype::f64), 1, ferry::reduction::sum));
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({1., 0.5, -1.})));
}

TEST_CASE("a leaf that was frozen after its use gets no gradient, and hooks need a function") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor y = ferry::require_grad(ferry::tensor_of({3., 4.}));
  const tensor z = ferry::sum(x * y);
  ferry::require_grad(x, false);
  ferry::backward(z);
  CHECK_FALSE(ferry::grad(x).defined());
  CHECK(ferry::equal(ferry::grad(y), ferry::tensor_of({1., 2.})));
  expect_error(ferry::errc::invalid_argument, "needs a function", [&] { (void)ferry::on_gradient(y, {}); });
}

TEST_CASE("a leaf has the gradient of what was computed from it") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2., 3.}));
  CHECK(x.requires_grad());
  CHECK(ferry::is_leaf(x));
  CHECK(!ferry::grad(x).defined());
  const tensor y = ferry::sum(x * x);
  CHECK(y.requires_grad());
  CHECK(!ferry::is_leaf(y));
  ferry::backward(y);
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({2., 4., 6.})));
  CHECK(!ferry::grad(x).requires_grad());
}

TEST_CASE("passes add to the gradient, in the same tensor, until it is cleared") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  ferry::backward(ferry::sum(x * 3));
  const tensor first = ferry::grad(x);
  ferry::backward(ferry::sum(x * x));
  CHECK(ferry::grad(x).same_as(first));
  CHECK(ferry::equal(first, ferry::tensor_of({5., 7.})));
  ferry::set_grad(x, {});
  CHECK(!ferry::grad(x).defined());
  ferry::set_grad(x, ferry::tensor_of({1., 1.}));
  ferry::backward(ferry::sum(x * 3));
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({4., 4.})));
  expect_error(errc::bad_shape, "f64 [3] for a tensor of f64 [2]", [&] {
    ferry::set_grad(x, ferry::tensor_of({1., 1., 1.}));
  });
}

TEST_CASE("a tensor that is used several times has the sum of the gradients, once") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor shared = x * 2;
  int calls = 0;
  (void)ferry::on_gradient(shared, [&](const tensor& gradient) {
    ++calls;
    CHECK(ferry::equal(gradient, ferry::tensor_of({4., 5.})));
    return tensor();
  });
  const tensor unused = shared * 100;
  ferry::backward(ferry::sum(shared * 3 + shared + shared * ferry::tensor_of({0., 1.})));
  CHECK(calls == 1);
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({8., 10.})));
}

TEST_CASE("several roots, with gradients of their own") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor y = x * x;
  const tensor z = x * 3;
  ferry::backward({y, z}, {.gradients = {ferry::tensor_of({1., 10.}), ferry::tensor_of({100., 1000.})}});
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({302., 3040.})));
  expect_error(errc::invalid_argument, "root 0 is f64 [2]", [&] { ferry::backward(x * x); });
  expect_error(errc::bad_shape, "given for root 0 is f64 [1]",
               [&] { ferry::backward(x * x, {.gradients = {ferry::tensor_of({1.})}}); });
  expect_error(errc::invalid_argument, "2 gradients were given for 1 roots", [&] {
    ferry::backward(ferry::sum(x), {.gradients = {tensor(), tensor()}});
  });
  expect_error(errc::bad_dtype, "given for root 0 is f32 [2]",
               [&] { ferry::backward(x * x, {.gradients = {ferry::zeros({2})}}); });
  expect_error(errc::invalid_argument, "root 0 requires no gradient", [&] { ferry::backward(ferry::zeros({})); });
  expect_error(errc::invalid_argument, "root 0 is an undefined tensor", [&] { ferry::backward(tensor()); });
}

TEST_CASE("a leaf may be a root") {
  const tensor x = ferry::require_grad(ferry::tensor_of({2.}));
  ferry::backward(x);
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({1.})));
}

TEST_CASE("gradients of chosen inputs, leaves or on the way, leave grad() alone") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor w = ferry::require_grad(ferry::tensor_of({3., 4.}));
  const tensor other = ferry::require_grad(ferry::tensor_of({0., 0.}));
  const tensor y = x * w;
  const tensor loss = ferry::sum(y * y);
  const tensors found = ferry::gradients(loss, {x, y, other}, {.retain_graph = true});
  CHECK(ferry::equal(found[0], ferry::tensor_of({18., 64.})));
  CHECK(ferry::equal(found[1], ferry::tensor_of({6., 16.})));
  CHECK(!found[2].defined());
  for (const tensor& each : {x, w, other}) CHECK(!ferry::grad(each).defined());
  ferry::backward(loss);
  CHECK(ferry::equal(ferry::grad(w), ferry::tensor_of({6., 32.})));
  expect_error(errc::invalid_argument, "input 0 requires no gradient",
               [&] { (void)ferry::gradients(ferry::sum(x * 2), ferry::zeros({2})); });
}

TEST_CASE("a graph is used once unless it is kept") {
  const tensor x = ferry::require_grad(ferry::tensor_of({3.}));
  const tensor y = x * x;
  ferry::backward(y, {.retain_graph = true});
  ferry::backward(y);
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({12.})));
  expect_error(errc::invalid_argument, "backward of mul (node ", [&] { ferry::backward(y); });
  expect_error(errc::invalid_argument, "retain_graph", [&] { ferry::backward(y); });
}

TEST_CASE("no_grad keeps operations out of the graph, on its thread and within its scope") {
  const tensor x = ferry::require_grad(ferry::tensor_of({3.}));
  {
    const ferry::no_grad outside;
    CHECK(!ferry::grad_enabled());
    CHECK(!(x * x).requires_grad());
    CHECK(!x.view({1, 1}).requires_grad());
    {
      const ferry::enable_grad inside;
      CHECK((x * x).requires_grad());
    }
    CHECK(!(x * x).requires_grad());
  }
  CHECK((x * x).requires_grad());
}

TEST_CASE("detach shares the elements and ends the graph") {
  const tensor x = ferry::require_grad(ferry::tensor_of({3.}));
  const tensor y = ferry::detach(x * x);
  CHECK(!y.requires_grad());
  const tensor same = ferry::detach(x);
  CHECK(same.data() == x.data());
  CHECK(!same.same_as(x));
  CHECK(!same.requires_grad());
}

TEST_CASE("what cannot have a gradient is refused in words") {
  expect_error(errc::bad_dtype, "not of i64", [] { ferry::require_grad(ferry::arange(3)); });
  const tensor x = ferry::require_grad(ferry::tensor_of({3.}));
  const tensor y = x * x;
  expect_error(errc::invalid_argument, "detach() makes one", [&] { ferry::require_grad(y, false); });
  CHECK(!ferry::is_leaf(ferry::require_grad(y)));  // it does so already
  CHECK(!ferry::require_grad(x, false).requires_grad());
  CHECK(!(x * x).requires_grad());
  expect_error(errc::invalid_argument, "requires no gradient", [&] { ferry::set_grad(x, ferry::tensor_of({3.})); });
}

TEST_CASE("a view that was made within no_grad and becomes a leaf is one for its views, too") {
  const tensor whole = ferry::require_grad(ferry::tensor_of({{1., 2.}, {3., 4.}}));
  tensor row;
  {
    const ferry::no_grad guard;
    row = whole.select(0, 0);
  }
  CHECK(!row.reshape({2, 1}).requires_grad());
  ferry::require_grad(row);
  CHECK(row.reshape({2, 1}).requires_grad());
  ferry::backward(ferry::sum(row * row) + ferry::sum(row.slice(0, 0, 1) * 10));
  CHECK(ferry::equal(ferry::grad(row), ferry::tensor_of({12., 4.})));
  CHECK(!ferry::grad(whole).defined());
  const tensor first = row.slice(0, 0, 1);
  expect_error(errc::invalid_argument, "a view of a leaf", [&] { ferry::mul_(first, row.slice(0, 1, 2)); });
  ferry::require_grad(row, false);
  CHECK(!row.reshape({2, 1}).requires_grad());
}

TEST_CASE("the gradient of what is not a number passes relu") {
  const tensor x = ferry::require_grad(ferry::tensor_of({-1., 0., 2., std::numeric_limits<double>::quiet_NaN()}));
  ferry::backward(ferry::sum(ferry::relu(x)));
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({0., 0., 1., 1.})));
}

TEST_CASE("what is not continuous has no gradient") {
  const tensor x = ferry::require_grad(ferry::tensor_of({3.7}));
  CHECK(!x.to(ferry::dtype::i64).requires_grad());
  CHECK(x.to(ferry::dtype::f32).requires_grad());
  expect_error(errc::bad_dtype, "to_dtype computed f16", [&] { (void)x.to(ferry::dtype::f16); });
  CHECK(!ferry::detach(x).to(ferry::dtype::f16).requires_grad());
}

TEST_CASE("found gradients are the caller's, and nothing else is touched") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor y = x + 1;
  ferry::retain_grad(y);
  const tensor given = ferry::tensor_of({3., 4.});
  const tensors found = ferry::gradients(y, {x, y}, {.gradients = {given}});
  ferry::mul_(found[0], 0);
  CHECK(ferry::equal(found[1], given));
  ferry::mul_(ferry::gradients(ferry::sum(x), {x})[0], 2);
  CHECK(ferry::gradients(ferry::sum(x), {}).empty());
  for (const tensor& each : {x, y}) CHECK(!ferry::grad(each).defined());
  CHECK(ferry::equal(given, ferry::tensor_of({3., 4.})));
}

TEST_CASE("a gradient that was set is added to, whatever its layout") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  ferry::set_grad(x, ferry::tensor_of({5.}).expand({2}));
  ferry::backward(ferry::sum(x));
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({6., 6.})));
  ferry::set_grad(x, x);
  ferry::backward(ferry::sum(x));
  CHECK(ferry::equal(ferry::detach(x), ferry::tensor_of({1., 2.})));
}

TEST_CASE("a small network") {
  check_gradients(
      [](const tensors& in) -> tensors {
        const tensor hidden = ferry::matmul(in[0], in[1]) + in[2];
        return {ferry::sum(hidden * hidden * hidden, {1}), hidden.transpose(0, 1).slice(0, 1)};
      },
      {varied({5, 3}, 1), varied({3, 4}, 2), varied({4}, 3)});
}

}  // namespace graph_test
