// The conformance suite of engines of gradients, over libtorch's graph.

#include <ferry/adapters/libtorch/engine.hpp>

#include "torch.hpp"

#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include <doctest/doctest.h>

#include "tests/autograd/dist/engine_conformance.hpp"

namespace {

struct out_of_order : torch::autograd::Function<out_of_order> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("out of order");
  }
};

struct libtorch_kit {
  using value = at::Tensor;
  static value leaf(double x) { return at::scalar_tensor(x, at::kDouble).requires_grad_(); }
  static double number(const value& of) { return of.item<double>(); }
  static value add(const value& a, const value& b) { return a + b; }
  static value mul(const value& a, const value& b) { return a * b; }
  static value failing(const value& of) { return out_of_order::apply(of); }
  static std::optional<double> gradient(const ferry::dist_autograd::gradient_map& in, const value& leaf) {
    const at::Tensor found = ferry::torch_gradient(in, leaf);
    return found.defined() ? std::optional(found.item<double>()) : std::nullopt;
  }
  static void on_gradient(const value& of, std::function<double(double)> hook) {
    of.register_hook([hook = std::move(hook)](const at::Tensor& g) {
      return at::scalar_tensor(hook(g.item<double>()), at::kDouble);
    });
  }
};

FERRY_TEST_ENGINE(libtorch_kit)

}  // namespace
