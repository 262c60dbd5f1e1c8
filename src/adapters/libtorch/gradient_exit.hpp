#pragma once

// The end of libtorch's graph where a tensor came from elsewhere.

#include <string>
#include <utility>

#include <torch/csrc/autograd/function.h>

#include <ferry/autograd/dist/engine.hpp>
#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

/// Stands for a node of another engine. Distributed passes hand the gradient on; libtorch's own cannot.
class gradient_exit final : public torch::autograd::Node {
 public:
  explicit gradient_exit(held_edge to) : to_(std::move(to)) {}
  [[nodiscard]] const node_edge& to() const noexcept { return to_.edge; }
  [[nodiscard]] std::string name() const override { return "ferry"; }

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*gradients*/) override {
    throw_error(
        errc::invalid_argument,
        "backward() of libtorch does not reach the graph of ferry, or the worker, from which a tensor came: begin the "
        "pass with ferry::dist_autograd::backward(context, ferry::from_torch(loss))");
  }

 private:
  held_edge to_;
};

}  // namespace ferry::inline v0::detail
