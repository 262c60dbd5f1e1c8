#pragma once

// Modules as users write them.

#include <memory>
#include <optional>
#include <vector>

#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

namespace models {

using ferry::tensor;

/// A module of modules, with a parameter of its own.
struct residual {
  explicit residual(ferry::dtype type = ferry::dtype::f32)
      : scale(ferry::require_grad(ferry::ones({4}, type))),
        norm({4}, {.dtype = type}),
        layers{ferry::nn::linear(4, 4, {.dtype = type}), ferry::nn::linear(4, 4, {.dtype = type})} {}

  tensor operator()(const tensor& x) const {
    tensor y = norm(x);
    for (const ferry::nn::linear& layer : layers) y = ferry::tanh(layer(y));
    return x + y * scale;
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("scale", scale);
    visit("norm", norm);
    visit("layers", layers);
  }

  tensor scale;
  ferry::nn::layer_norm norm;
  std::vector<ferry::nn::linear> layers;
};

/// Members of every kind; the first and the last one share their weight.
struct tied {
  ferry::nn::embedding table{5, 3};
  std::optional<ferry::nn::linear> absent;
  std::optional<ferry::nn::linear> present{std::in_place, 3, 3};
  std::unique_ptr<residual> elsewhere = std::make_unique<residual>();
  ferry::nn::dropout drop{0.5};
  ferry::nn::linear out{3, 5, {.bias = false}};
  bool training = true;

  tied() { out.weight = table.weight; }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("table", table);
    visit("absent", absent);
    visit("present", present);
    visit("elsewhere", elsewhere);
    visit("drop", drop);
    visit("out", out);
  }
};

}  // namespace models
