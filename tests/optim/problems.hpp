#pragma once

// What the tests of optimizers share.

#include <cmath>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>

namespace problems {

using ferry::tensor;

/// Calls f(std::type_identity<Algorithm>{}) for every algorithm.
template <class F>
void for_each_algorithm(F&& f) {
  f(std::type_identity<ferry::sgd>{});
  f(std::type_identity<ferry::adam>{});
  f(std::type_identity<ferry::adamw>{});
  f(std::type_identity<ferry::adagrad>{});
  f(std::type_identity<ferry::row_wise_adagrad>{});
  f(std::type_identity<ferry::ftrl>{});
  f(std::type_identity<ferry::rmsprop>{});
  f(std::type_identity<ferry::adadelta>{});
  f(std::type_identity<ferry::adamax>{});
  f(std::type_identity<ferry::rprop>{});
}

/// Options under which an algorithm uses all that it has.
template <class Algorithm>
typename Algorithm::options full_options() {
  typename Algorithm::options with;
  if constexpr (requires { with.momentum; }) with.momentum = 0.9;
  if constexpr (requires { with.nesterov; }) with.nesterov = true;
  if constexpr (requires { with.amsgrad; }) with.amsgrad = true;
  if constexpr (requires { with.centered; }) with.centered = true;
  if constexpr (requires { with.weight_decay; }) with.weight_decay = 0.05;
  if constexpr (requires { with.initial_accumulator; }) with.initial_accumulator = 0.1;
  if constexpr (requires { with.l1; }) with.l1 = 0.01;
  return with;
}

/// The gradient of a sum of squares whose minimum is at 0.5, of the parameter's type and place.
inline tensor pull(const tensor& parameter) {
  const ferry::no_grad outside;
  return parameter * 0.7 - 0.35;
}

/// |a - b| <= tolerance * max(1, |b|) for all elements.
inline bool near(const tensor& a, const tensor& b, double tolerance) {
  const ferry::device host;
  return ferry::allclose(ferry::detach(a).to(host).to(ferry::dtype::f64),
                         ferry::detach(b).to(host).to(ferry::dtype::f64), tolerance, tolerance);
}

/// Calls f(name, a, b) for the tensors of two states of one algorithm.
template <class State, class F>
void for_each_pair(State a, State b, F&& f) {
  std::vector<tensor> left;
  a.visit_tensors([&](std::string_view, tensor& t) { left.push_back(t); });
  std::size_t next = 0;
  b.visit_tensors([&](std::string_view name, tensor& t) { f(name, left[next++], t); });
}

}  // namespace problems
