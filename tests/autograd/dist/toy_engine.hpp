#pragma once

// An engine of gradients for single numbers: as small as one can be.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ferry/autograd/dist/engine.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/traits.hpp>

namespace toy {

struct engine {};

struct node {
  std::string name;
  std::vector<ferry::held_edge> inputs;
  std::vector<double> derivatives;  // of the value, by each input
  ferry::tensor leaf = {};          // its value, for a leaf
  bool fails = false;
  std::vector<std::function<double(double)>> hooks = {};
  std::uint64_t number = next();

  static std::uint64_t next() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
};

struct scalar {
  double value = 0;
  std::shared_ptr<node> from = nullptr;  // null: requires no gradient
};

}  // namespace toy

template <>
struct ferry::autograd_traits<toy::engine> {
  static constexpr std::string_view name = "toy";
  using node_type = toy::node;
  static std::size_t value_count(const toy::node&) { return 1; }
  static void edges(const toy::node& of, std::vector<node_edge>& to) {
    for (const held_edge& each : of.inputs) to.push_back(each.edge);
  }
  static void apply(toy::node& of, std::span<gradient_value> gradients, std::span<gradient_value> results) {
    before_accumulation(of, gradients[0].dense);
    if (of.fails) throw std::runtime_error("out of order");
    for (std::size_t i = 0; i != results.size(); ++i)
      results[i].dense = tensor_of(gradients[0].dense.item<double>() * of.derivatives[i]);
  }
  static void release(toy::node&) {}
  static std::uint64_t order(const toy::node& of) { return of.number; }
  static stream on(const toy::node&) { return {}; }
  static std::string describe(const toy::node& of) { return of.name; }
  static std::optional<engine_leaf> leaf(const toy::node& of) {
    return of.leaf.defined() ? std::optional(engine_leaf{of.leaf.id(), of.leaf}) : std::nullopt;
  }
  static bool needs_dense(const toy::node& leaf) { return !leaf.hooks.empty(); }
  static void before_accumulation(toy::node& of, tensor& gradient) {
    for (const auto& hook : of.hooks) gradient = tensor_of(hook(gradient.item<double>()));
  }
  static void after_accumulation(toy::node&) {}
};

template <>
struct ferry::tensor_traits<toy::scalar> {
  static tensor to_tensor(const toy::scalar& of) {
    tensor t = tensor_of(of.value);
    if (of.from) lead_gradient_to(t, {{node_ref::of<toy::engine>(*of.from), 0}, of.from});
    return t;
  }
  static toy::scalar from_tensor(const tensor& t) {
    toy::scalar arrived{t.item<double>()};
    if (held_edge edge = gradient_edge_of(t))
      arrived.from = std::make_shared<toy::node>(toy::node{"arrive", {edge}, {1}});
    return arrived;
  }
};

namespace toy {

inline scalar leaf(double x) { return {x, std::make_shared<node>(node{"leaf", {}, {}, ferry::tensor_of(x)})}; }

inline scalar operation(const char* name, double value, const std::vector<std::pair<scalar, double>>& inputs) {
  node made{name, {}, {}};
  for (const auto& [input, derivative] : inputs) {
    if (!input.from) continue;
    made.inputs.push_back({{ferry::node_ref::of<engine>(*input.from), 0}, input.from});
    made.derivatives.push_back(derivative);
  }
  return {value, made.inputs.empty() ? nullptr : std::make_shared<node>(std::move(made))};
}

}  // namespace toy
