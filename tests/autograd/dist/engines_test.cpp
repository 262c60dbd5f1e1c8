// The conformance suite of engines, over ferry's own graph and a small engine for numbers.

#include <ferry/autograd/dist/engine.hpp>

#include <functional>
#include <optional>
#include <stdexcept>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>

#include "engine_conformance.hpp"
#include "toy_engine.hpp"

namespace engines_test {

using ferry::dist_autograd::gradient_map;

struct out_of_order : ferry::function<out_of_order> {
  static constexpr std::string_view name = "out_of_order";
  struct saved {};
  static ferry::tensor forward(saved&, const ferry::tensor& x) { return x.clone(); }
  static ferry::tensor backward(const saved&, const ferry::tensor&) { throw std::runtime_error("out of order"); }
};

struct own_graph {
  using value = ferry::tensor;
  static value leaf(double x) { return ferry::require_grad(ferry::tensor_of(x)); }
  static double number(const value& of) { return of.item<double>(); }
  static value add(const value& a, const value& b) { return a + b; }
  static value mul(const value& a, const value& b) { return a * b; }
  static value failing(const value& a) { return out_of_order::apply(a); }
  static std::optional<double> gradient(const gradient_map& all, const value& leaf) {
    return all.contains(leaf) ? std::optional(all.at(leaf).item<double>()) : std::nullopt;
  }
  static void on_gradient(const value& of, std::function<double(double)> hook) {
    ferry::on_gradient(of, [hook = std::move(hook)](const ferry::tensor& gradient) {
      return ferry::tensor_of(hook(gradient.item<double>()));
    });
  }
};

struct toy_engine {
  using value = toy::scalar;
  static value leaf(double x) { return toy::leaf(x); }
  static double number(const value& of) { return of.value; }
  static value add(const value& a, const value& b) {
    return toy::operation("add", a.value + b.value, {{a, 1}, {b, 1}});
  }
  static value mul(const value& a, const value& b) {
    return toy::operation("mul", a.value * b.value, {{a, b.value}, {b, a.value}});
  }
  static value failing(const value& a) {
    value result = toy::operation("failing", a.value, {{a, 1}});
    result.from->fails = true;
    return result;
  }
  static std::optional<double> gradient(const gradient_map& all, const value& leaf) {
    return own_graph::gradient(all, leaf.from->leaf);
  }
  static void on_gradient(const value& of, std::function<double(double)> hook) {
    of.from->hooks.push_back(std::move(hook));
  }
};

// A value of one engine, an operation of the other.
ferry::tensor square_of(const ferry::tensor& x) { return x * x; }
ferry::tensor cube_of(const ferry::tensor& t) {
  const toy::scalar x = ferry::tensor_traits<toy::scalar>::from_tensor(t);
  return ferry::tensor_traits<toy::scalar>::to_tensor(toy_engine::mul(toy_engine::mul(x, x), x));
}

FERRY_TEST_ENGINE(own_graph)
FERRY_TEST_ENGINE(toy_engine)

TEST_CASE("one pass goes through the graphs of two engines") {
  ferry_test::cluster group(2);
  const ferry::tensor a = own_graph::leaf(2);
  const ferry::dist_autograd::context in(group[0]);
  const ferry::tensor cube = group[0].rpc_sync<cube_of>("worker1", a);
  const toy::scalar b = toy::leaf(3);
  const ferry::tensor square = group[0].rpc_sync<square_of>("worker1", ferry::tensor_traits<toy::scalar>::to_tensor(b));
  ferry::dist_autograd::backward(in, cube * square);
  CHECK(own_graph::gradient(in.gradients(), a) == 3 * 4 * 9);
  CHECK(toy_engine::gradient(in.gradients(), b) == 2 * 3 * 8);
}

TEST_CASE("a pass on one worker does not go through what came from elsewhere, and says so") {
  ferry_test::cluster group(2);
  const ferry::tensor a = own_graph::leaf(2);
  const ferry::dist_autograd::context in(group[0]);
  const ferry::tensor c = group[0].rpc_sync<square_of>("worker1", a);
  expect_error(ferry::errc::invalid_argument, "dist_autograd::backward", [&] { ferry::backward(c * c); });
  const ferry::tensor led = ferry::tensor_traits<toy::scalar>::to_tensor(toy::leaf(1));
  expect_error(ferry::errc::invalid_argument, "dist_autograd::backward", [&] { ferry::backward(led * led); });
}

}  // namespace engines_test
