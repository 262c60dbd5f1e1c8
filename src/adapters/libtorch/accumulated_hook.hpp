#pragma once

// A hook that hears of the gradient of a leaf, and does not see it.

#include <functional>
#include <utility>

#include <torch/csrc/autograd/function_hook.h>

namespace ferry::inline v0::detail {

/// Of the node of a leaf. It leaves sparse gradients sparse, and passes need keep nothing for it.
class accumulated_hook final : public torch::autograd::FunctionPostHook {
 public:
  explicit accumulated_hook(std::function<void()> hear) : hear_(std::move(hear)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    hear_();
    return outputs;
  }

 private:
  const std::function<void()> hear_;
};

}  // namespace ferry::inline v0::detail
