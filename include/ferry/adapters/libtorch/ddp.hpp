#pragma once

// Data-parallel training of modules of torch::nn: nn::ddp (<ferry/nn/ddp.hpp>) for them.
//
//   ferry::process_group trainers;                                        // the same workers everywhere
//   ferry::torch_ddp model(std::make_shared<net>(), trainers);            // the parameters of rank 0, on every member
//   torch::optim::Adam optimizer(model.parameters(), 1e-3);
//   optimizer.zero_grad();
//   torch::cross_entropy_loss(model(x), y).backward();                    // gradients are averages when it returns
//   optimizer.step();

#include <memory>
#include <utility>
#include <vector>

#include <ferry/adapters/libtorch/nn.hpp>
#include <ferry/group/process_group.hpp>
#include <ferry/nn/ddp_options.hpp>
#include <ferry/nn/detail/collect_tensors.hpp>

namespace ferry::inline v0 {

namespace detail {

std::shared_ptr<ddp_core> make_torch_ddp(const torch::nn::Module& module, const process_group& group,
                                         const nn::ddp_options& options);
void note_torch_outputs(ddp_core& core, const std::vector<at::Tensor>& outputs);

}  // namespace detail

/// A module of libtorch whose gradients are averaged over a group, as those of an nn::ddp are, with its rules and options: a pass is
/// backward() of libtorch, or one in a context of dist_autograd. Outside of contexts the averages are in at::Tensor::grad(), which are
/// views of the buckets then; passes add to them in place until they are reset. M: a holder of a module, a shared pointer to one, or a
/// type derived from torch::nn::Module.
///
/// Its parameters stay on their devices and of their types while this lives. In a context they are of f32 or f64. Sparse gradients are
/// refused. Buffers are given to all with the parameters and are each member's own between that. On CUDA, a pass of libtorch outside of
/// contexts waits on libtorch's thread for the device: members of one process use devices of their own. Not thread-safe.
template <torch_module M>
class torch_ddp {
 public:
  /// Collective. Parameters and buffers of rank 0 are given to all. Throws what that of nn::ddp throws; buffers agree as parameters do, and the strides of
  /// parameters, too.
  torch_ddp(M module, const process_group& group, const nn::ddp_options& options = {})
      : module_(std::move(module)), core_(detail::make_torch_ddp(detail::torch_module_of(module_), group, options)) {}

  /// forward() of the module.
  template <class... A>
  auto operator()(A&&... arguments) {
    detail::begin_forward(*core_);
    auto output = detail::torch_module_of(module_).forward(std::forward<A>(arguments)...);
    if (detail::finds_unused(*core_)) {
      std::vector<at::Tensor> tensors;
      detail::collect_tensors(output, tensors);
      detail::note_torch_outputs(*core_, tensors);
    }
    return output;
  }
  template <class... A>
  auto forward(A&&... arguments) {
    return (*this)(std::forward<A>(arguments)...);
  }

  [[nodiscard]] M& module() noexcept { return module_; }
  [[nodiscard]] const M& module() const noexcept { return module_; }
  [[nodiscard]] std::vector<at::Tensor> parameters() const { return detail::torch_module_of(module_).parameters(); }

  /// While it lives, passes add to gradients without averages; the next pass after it averages the sum. The same on every member.
  nn::no_sync_scope no_sync() { return nn::no_sync_scope(core_); }

  /// For members with different numbers of batches, as nn::ddp::join(). Buffers at the end are those of the same member as the parameters.
  template <class Body>
  void join(Body&& body) {
    detail::join_with(*core_, body);
  }

 private:
  M module_;
  std::shared_ptr<detail::ddp_core> core_;
};

}  // namespace ferry::inline v0
