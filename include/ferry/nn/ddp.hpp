#pragma once

// Data-parallel training: every member of a process_group has a copy of a module and batches of its own; passes average the
// gradients.
//
//   ferry::process_group trainers;                                   // the same workers everywhere
//   ferry::nn::ddp model(classifier(), trainers);                    // the parameters of rank 0, on every member
//   ferry::optimizer<ferry::adam> optimizer(model.parameters());
//   ferry::backward(loss(model(x), y));                              // gradients are averages when it returns
//   optimizer.step();

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ferry/autograd/grad_mode.hpp>
#include <ferry/group/process_group.hpp>
#include <ferry/nn/ddp_options.hpp>
#include <ferry/nn/detail/collect_tensors.hpp>
#include <ferry/nn/module.hpp>

namespace ferry::inline v0 {

namespace detail {

std::shared_ptr<ddp_core> make_ddp(const module_parts& module, const process_group& group,
                                   const nn::ddp_options& options);
/// The parameters that a ddp averages.
struct averaged_parameter {
  std::uintptr_t id = 0;
  bool trained = false;
};
std::vector<averaged_parameter> list_averaged(const module_parts& module);
/// Throws errc::invalid_argument if the module has other tensors by now, or trains ones that it did not.
void need_averaged(const std::vector<averaged_parameter>& averaged, const module_parts& now);
void note_outputs(ddp_core& core, const std::vector<tensor>& outputs);

}  // namespace detail

namespace nn {

/// A module whose gradients are averaged over a group: in buckets, in the reverse order of the parameters, each while the pass
/// goes on with the gradients of the next. A pass returns when all averages are in ferry::grad() (views of the buckets), or,
/// inside a context of dist_autograd, in the context: use it with the distributed pass whenever the model has parts at other
/// workers. Parameters outside of the module keep gradients of their own.
///
/// Every member makes the same passes, one at a time. A pass of a member waits for those of all others; errors of the group end
/// it, and so does a failure of the pass at another member: errc::remote_exception, with the member and the reason. All go on with the
/// next pass. A parameter that gets no gradient in a pass leaves the averages incomplete: the next call throws errc::invalid_argument
/// with the names of such parameters, and what to do. So does a call of a module whose parameters are other tensors than when the
/// ddp was made (nn::to(), an assignment), or that trains ones that were frozen then: make the ddp anew. backward() with `then` is refused where the optimizer has parameters at this worker.
/// Gradients on devices have their buckets there. The gradients of tables whose module says `sparse_gradient` travel as rows, those
/// that members have, and are rows afterwards; other sparse gradients are refused. Not thread-safe.
template <class M>
class ddp {
 public:
  /// Collective. The parameters of rank 0 are given to all. Throws errc::group_mismatch if names, shapes or dtypes of the
  /// parameters differ, or which follow each other on one device, errc::invalid_argument if none requires a gradient, and the errors of collectives.
  ddp(M module, const process_group& group, const ddp_options& options = {});

  template <class... A>
  auto operator()(A&&... arguments);

  [[nodiscard]] M& module() noexcept { return module_; }
  [[nodiscard]] const M& module() const noexcept { return module_; }
  [[nodiscard]] std::vector<tensor> parameters() const { return nn::parameters(module_); }
  /// A ddp is a module itself, with the names of its module: nn::save(), nn::eval() and the like take either.
  template <class Visit>
  void visit_members(Visit&& visit) {
    if constexpr (requires { visit.enter(module_); }) {
      visit.enter(module_);  // with what the module says of itself
    } else {
      module_.visit_members(visit);
    }
  }

  /// While it lives, passes add to ferry::grad() without averages; the next pass after it averages the sum. The same on every
  /// member.
  no_sync_scope no_sync() { return no_sync_scope(core_); }

  /// For members with different numbers of batches: runs `body`, in which each call of the module is followed by one pass, and then
  /// takes part with zeros until all members have finished theirs. Averages are over all members, also those that have
  /// finished. Ends with the parameters of a member that made the most passes, on all of them. Every member calls it. An
  /// exception of `body` ends it on all members: errc::remote_exception for the others, with the name of one that has thrown.
  template <class Body>
  void join(Body&& body) {
    detail::join_with(*core_, body);
  }

 private:
  M module_;
  std::vector<detail::averaged_parameter> averaged_;
  std::shared_ptr<detail::ddp_core> core_;
};

template <class M>
ddp<M>::ddp(M module, const process_group& group, const ddp_options& options)
    : module_(std::move(module)),
      averaged_(detail::list_averaged(detail::module_parts_of(module_))),
      core_(detail::make_ddp(detail::module_parts_of(module_), group, options)) {}

template <class M>
template <class... A>
auto ddp<M>::operator()(A&&... arguments) {
  if (grad_enabled()) detail::need_averaged(averaged_, detail::present_parts_of(module_));
  detail::begin_forward(*core_);
  auto output = module_(std::forward<A>(arguments)...);
  if (detail::finds_unused(*core_)) {
    std::vector<tensor> tensors;
    detail::collect_tensors(output, tensors);
    detail::note_outputs(*core_, tensors);
  }
  return output;
}

}  // namespace nn
}  // namespace ferry::inline v0
