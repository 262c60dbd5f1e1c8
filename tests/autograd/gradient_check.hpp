#pragma once

// Gradients against differences of values.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "varied.hpp"

namespace ferry_test {

using tensors = std::vector<ferry::tensor>;

/// What the descriptors of tests' own operations on one tensor share.
template <ferry::operation_kind Kind>
struct operation_on_one {
  static constexpr ferry::operation_kind kind = Kind;
  static constexpr std::size_t inputs = 1;
  static constexpr ferry::operation_needs needs{};
  struct parameters {};
};

/// Of f64, on the CPU.
inline bool plain(const ferry::tensor& t) { return t.dtype() == ferry::dtype::f64 && t.device().is_cpu(); }

/// sum(weights * outputs), whose gradient with respect to an output is its weights.
inline double weighed(const tensors& outputs, const tensors& weights) {
  double total = 0;
  for (std::size_t i = 0; i != outputs.size(); ++i) {
    if (weights[i].defined())
      total += ferry::sum(ferry::mul(ferry::detach(outputs[i]).contiguous(), weights[i])).item<double>();
  }
  return total;
}

/// Checks the gradient of each input that is of f64 (all on the CPU) against central differences: the Jacobian, multiplied by weights. `f` must
/// leave its inputs as they are.
inline void check_gradients(const std::function<tensors(const tensors&)>& f, const tensors& points,
                            double tolerance = 1e-6) {
  tensors inputs;
  for (const ferry::tensor& each : points) inputs.push_back(plain(each) ? ferry::require_grad(each.clone()) : each);
  const tensors outputs = f(inputs);
  tensors roots;
  tensors weights;
  tensors weights_of_roots;
  for (const ferry::tensor& each : outputs) {
    const bool counts = each.requires_grad();
    weights.push_back(counts ? varied(each.shape(), 0.3 + static_cast<double>(weights.size())) : ferry::tensor());
    if (!counts) continue;
    roots.push_back(each);
    weights_of_roots.push_back(weights.back());
  }
  REQUIRE(!roots.empty());
  tensors differentiated;
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(differentiated), plain);
  const tensors found = ferry::gradients(roots, differentiated, {.gradients = weights_of_roots});
  for (std::size_t i = 0, next = 0; i != inputs.size(); ++i) {
    CAPTURE(i);
    if (!plain(inputs[i])) continue;
    const ferry::tensor gradient = found[next++];
    const ferry::tensor own = gradient.defined() ? gradient.contiguous() : ferry::zeros_like(points[i]);
    REQUIRE(own.shape() == points[i].shape());
    for (std::int64_t k = 0; k != own.numel(); ++k) {
      CAPTURE(k);
      const auto at = [&](double offset) {
        tensors moved;
        for (const ferry::tensor& each : points) moved.push_back(each.clone());
        moved[i].data<double>()[k] += offset;
        return weighed(f(moved), weights);
      };
      constexpr double step = 1e-5;
      CHECK(own.data<double>()[k] == doctest::Approx((at(step) - at(-step)) / (2 * step)).epsilon(tolerance).scale(1));
    }
  }
}

}  // namespace ferry_test
