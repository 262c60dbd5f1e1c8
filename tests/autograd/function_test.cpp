// Users' functions, operations and hooks.

#include <array>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/operation.hpp>

#include "expect_error.hpp"
#include "gradient_check.hpp"

namespace function_test {

using ferry::errc;
using ferry::tensor;
using ferry_test::check_gradients;

using ferry_test::tensors;
using ferry_test::varied;

namespace {

struct cube : ferry::function<cube> {
  static constexpr std::string_view name = "cube";
  struct saved {
    ferry::saved_tensor x;
  };
  static tensor forward(saved& keep, const tensor& x) {
    CHECK(!ferry::grad_enabled());
    keep.x = x;
    return x * x * x;
  }
  static tensor backward(const saved& kept, const tensor& gradient) {
    return gradient * kept.x.get() * kept.x.get() * 3;
  }
};

// Two results, and an argument that is no tensor.
struct sum_and_product : ferry::function<sum_and_product> {
  static constexpr std::string_view name = "sum_and_product";
  struct saved {
    ferry::saved_tensor a;
    ferry::saved_tensor b;
    double factor = 0;
  };
  static std::array<tensor, 2> forward(saved& keep, const tensor& a, double factor, const tensor& b) {
    keep = {a, b, factor};
    return {a + b, a * b * factor};
  }
  static std::array<tensor, 2> backward(const saved& kept, std::span<const tensor> gradients) {
    const tensor none = ferry::zeros_like(kept.a.get());
    const tensor of_sum = gradients[0].defined() ? gradients[0] : none;
    const tensor of_product = gradients[1].defined() ? gradients[1] * kept.factor : none;
    return {of_sum + of_product * kept.b.get(), of_sum + of_product * kept.a.get()};
  }
};

struct same : ferry::function<same> {
  static constexpr std::string_view name = "same";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x; }
  static tensor backward(const saved&, const tensor& gradient) { return gradient; }
};

// Keeps its result.
struct keeping : ferry::function<keeping> {
  static constexpr std::string_view name = "keeping";
  struct saved {
    tensor result;
    ferry::saved_tensor none;
  };
  static tensor forward(saved& keep, const tensor& x) {
    keep.none = tensor();
    return keep.result = x * 4;
  }
  static tensor backward(const saved& kept, const tensor& gradient) {
    CHECK(!kept.none.get().defined());
    return gradient * kept.result;
  }
};

// To half precision.
struct halving : ferry::function<halving> {
  static constexpr std::string_view name = "halving";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x.to(ferry::dtype::f16); }
  static tensor backward(const saved&, const tensor& gradient) { return gradient.to(ferry::dtype::f64); }
};

struct wrong : ferry::function<wrong> {
  static constexpr std::string_view name = "wrong";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 2; }
  static tensor backward(const saved&, const tensor&) { return ferry::zeros({7}, ferry::dtype::f64); }
};

struct failing : ferry::function<failing> {
  static constexpr std::string_view name = "failing";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 2; }
  static tensor backward(const saved&, const tensor&) { throw std::out_of_range("of the user"); }
};

}  // namespace

// An operation of the program's own, with a formula and without.
struct halved : ferry_test::operation_on_one<ferry::operation_kind::new_result> {
  static constexpr std::string_view name = "test.halved";

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters&, const tensor& t) { return t * 0.5; }
};
struct opaque : ferry_test::operation_on_one<ferry::operation_kind::new_result> {
  static constexpr std::string_view name = "test.opaque";

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters&, const tensor& t) { return t * 0.5; }
};

}  // namespace function_test

template <>
struct ferry::derivative<function_test::halved> {
  static constexpr ferry::derivative_keeps keeps{};
  static std::array<tensor, 1> backward(const function_test::halved::parameters&, const ferry::backward_run&,
                                        const tensor& gradient) {
    return {gradient * 0.5};
  }
};

namespace function_test {

TEST_CASE("a user's function") {
  check_gradients([](const tensors& in) -> tensors { return {cube::apply(in[0] * 2)}; }, {varied({3}, 1)});
  check_gradients(
      [](const tensors& in) -> tensors {
        const auto both = sum_and_product::apply(in[0], 3., in[1]);
        return {both[0] * both[1]};
      },
      {varied({3}, 1), varied({3}, 2)});
  check_gradients([](const tensors& in) -> tensors { return {sum_and_product::apply(in[0], 3., in[1])[1]}; },
                  {varied({3}, 1), varied({3}, 2)});
  const tensor plain = ferry::tensor_of({2.});
  CHECK(!cube::apply(plain).requires_grad());
  const tensor x = ferry::require_grad(ferry::tensor_of({2.}));
  {
    const ferry::no_grad outside;
    CHECK(!cube::apply(x).requires_grad());
  }
}

TEST_CASE("a function that returns its argument does not make it a value") {
  const tensor x = ferry::require_grad(ferry::tensor_of({2.}));
  const tensor y = same::apply(x);
  CHECK(!y.same_as(x));
  CHECK(ferry::is_leaf(x));
  ferry::backward(y);
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({1.})));
  ferry::add_(y, 1);
  CHECK(ferry::equal(ferry::detach(x), ferry::tensor_of({2.})));
}

TEST_CASE("a function that returns what has no gradient is refused") {
  const tensor x = ferry::require_grad(ferry::tensor_of({2.}));
  expect_error(errc::bad_dtype, "halving returned f16", [&] { (void)halving::apply(x); });
}

TEST_CASE("what is saved may be nothing, and a result that is kept is no circle") {
  ferry::weak_tensor left;
  {
    const tensor x = ferry::require_grad(ferry::tensor_of({2.}));
    const tensor y = keeping::apply(x);
    left = y;
    ferry::backward(y, {.retain_graph = true});
    CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({8.})));
  }
  CHECK(left.expired());
}

TEST_CASE("errors of formulas name the node; exceptions of users keep their type") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  expect_error(errc::bad_shape, "returned f64 [7] as the gradient of input 0, which is f64 [2]",
               [&] { ferry::backward(ferry::sum(wrong::apply(x))); });
  expect_error(errc::bad_shape, "backward of wrong (node ", [&] { ferry::backward(ferry::sum(wrong::apply(x))); });
  CHECK_THROWS_AS(ferry::backward(ferry::sum(failing::apply(x))), std::out_of_range);
  ferry::backward(ferry::sum(x * x));  // passes that failed leave nothing behind
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({2., 4.})));
}

TEST_CASE("operations of a program have formulas of their own") {
  CHECK(ferry::register_derivative<halved>());
  CHECK(ferry::register_derivative<halved>());
  check_gradients([](const tensors& in) -> tensors { return {ferry::run_operation<halved>({}, in[0])}; },
                  {varied({3}, 1)});
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  expect_error(errc::invalid_argument, "test.opaque has no formula for gradients",
               [&] { (void)ferry::run_operation<opaque>({}, x); });
  const ferry::no_grad outside;
  CHECK(!ferry::run_operation<opaque>({}, x).requires_grad());
}

TEST_CASE("hooks see and replace gradients, in order, until they are removed") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  std::vector<int> calls;
  auto doubling = ferry::on_gradient(x, [&](const tensor& gradient) {
    calls.push_back(1);
    return gradient * 2;
  });
  (void)ferry::on_gradient(x, [&](const tensor& gradient) {
    calls.push_back(2);
    CHECK(ferry::equal(gradient, ferry::tensor_of({6., 6.})));
    return tensor();
  });
  (void)ferry::on_accumulated(x, [&](const tensor& leaf) {
    calls.push_back(3);
    CHECK(leaf.same_as(x));
    CHECK(ferry::grad(leaf).defined());
  });
  ferry::backward(ferry::sum(x * 3));
  CHECK(calls == std::vector<int>{1, 2, 3});
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({6., 6.})));
  doubling.remove();
  doubling.remove();
  ferry::backward(ferry::sum(x * 6));
  CHECK(calls == std::vector<int>{1, 2, 3, 2, 3});
  expect_error(errc::invalid_argument, "requires no gradient",
               [] { (void)ferry::on_gradient(ferry::zeros({1}), [](const tensor& g) { return g; }); });
  expect_error(errc::invalid_argument, "is not a leaf",
               [&] { (void)ferry::on_accumulated(x * 2, [](const tensor&) {}); });
  (void)ferry::on_gradient(x, [](const tensor&) { return ferry::zeros({5}); });
  expect_error(errc::bad_shape, "a hook on the gradient of accumulate", [&] { ferry::backward(ferry::sum(x * 6)); });
}

TEST_CASE("a hook may remove another one") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1.}));
  int calls = 0;
  ferry::gradient_hook second;
  (void)ferry::on_gradient(x, [&](const tensor&) {
    second.remove();
    return tensor();
  });
  second = ferry::on_gradient(x, [&](const tensor&) {
    ++calls;
    return tensor();
  });
  ferry::backward(x);
  CHECK(calls == 0);
}

TEST_CASE("the gradient of a value is kept on request") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const tensor y = x * 3;
  ferry::retain_grad(y);
  ferry::retain_grad(y);
  ferry::backward(ferry::sum(y * y));
  CHECK(ferry::equal(ferry::grad(y), ferry::tensor_of({6., 12.})));
  const tensor z = x * x;
  ferry::retain_grad(z);
  ferry::mul_(z, 3);
  ferry::backward(ferry::sum(z));
  CHECK(ferry::equal(ferry::grad(z), ferry::tensor_of({1., 1.})));  // of the value that it has now
}

}  // namespace function_test
