#pragma once

// Optimizers of torch::optim over leaves of libtorch that several workers own.
//
//   std::vector<ferry::rref<ferry::tensor>> parameters = ferry::torch_parameters(remote_half);    // of worker1
//   for (const at::Tensor& each : own_half->parameters()) parameters.emplace_back(ferry::from_torch(each));
//   ferry::distributed_torch_optimizer<torch::optim::Adam> optimizer(parameters, torch::optim::AdamOptions(1e-3));
//   for (...) {
//     ferry::dist_autograd::context pass;
//     pass.backward(ferry::from_torch(loss(...)));
//     optimizer.step(pass);
//   }

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <ferry/adapters/libtorch/engine.hpp>
#include <ferry/autograd/dist/backward.hpp>
#include <ferry/autograd/dist/context.hpp>
#include <ferry/rpc/call.hpp>
#include <ferry/rpc/rref.hpp>
#include <ferry/rpc/worker.hpp>

namespace ferry::inline v0 {

/// Customisation point: an optimizer derived from torch::optim::Optimizer that distributed_torch_optimizer can use, with
///   using options_type = my_options;   derived from torch::optim::OptimizerOptions, with serialize(); made from a learning rate
/// It is made as Optimizer(std::vector<at::Tensor>, options_type), and its step() needs no closure.
template <class Optimizer>
struct torch_optimizer_traits;
template <>
struct torch_optimizer_traits<torch::optim::SGD> {
  using options_type = torch::optim::SGDOptions;
};
template <>
struct torch_optimizer_traits<torch::optim::Adam> {
  using options_type = torch::optim::AdamOptions;
};
template <>
struct torch_optimizer_traits<torch::optim::AdamW> {
  using options_type = torch::optim::AdamWOptions;
};
template <>
struct torch_optimizer_traits<torch::optim::Adagrad> {
  using options_type = torch::optim::AdagradOptions;
};
template <>
struct torch_optimizer_traits<torch::optim::RMSprop> {
  using options_type = torch::optim::RMSpropOptions;
};

namespace detail {

using torch_optimizer = std::unique_ptr<torch::optim::Optimizer>;

std::string encode_torch_options(const torch::optim::OptimizerOptions& with);
void decode_torch_options(const std::string& text, torch::optim::OptimizerOptions& into);

/// What an owner has of a distributed_torch_optimizer: an optimizer for each of its parameters.
class torch_updates {
 public:
  using maker = torch_optimizer (*)(at::Tensor parameter, const std::string& options);
  /// `options[i]` is that of group i; `groups[i]` is the group of parameter i.
  torch_updates(maker make, const std::vector<rref<tensor>>& parameters, const std::vector<std::uint64_t>& groups,
                const std::vector<std::string>& options);
  torch_updates(const torch_updates&) = delete;
  torch_updates& operator=(const torch_updates&) = delete;
  ~torch_updates();

  /// That of registered_update, for passes.
  [[nodiscard]] std::uint64_t number() const;
  /// False if the worker does not have the context.
  bool step(dist_autograd::context_id in);
  void set_lr(std::uint64_t group, double lr);
  /// What is kept of each parameter, as libtorch saves it.
  [[nodiscard]] std::vector<std::string> states() const;
  void load(const std::vector<std::string>& states);

 private:
  struct parts;
  const std::shared_ptr<parts> parts_;  // a pass that runs an update keeps it, too
  std::unique_ptr<dist_autograd::registered_update> registered_;
};

template <class Optimizer>
class torch_updates_of : public torch_updates {
 public:
  torch_updates_of(const std::vector<rref<tensor>>& parameters, const std::vector<std::uint64_t>& groups,
                   const std::vector<std::string>& options)
      : torch_updates(&make, parameters, groups, options) {}

 private:
  static torch_optimizer make(at::Tensor parameter, const std::string& options) {
    typename torch_optimizer_traits<Optimizer>::options_type with(0.1);
    decode_torch_options(options, with);
    return std::make_unique<Optimizer>(std::vector<at::Tensor>{std::move(parameter)}, with);
  }
};

/// Called on one of the parameters, at their owner.
template <class Optimizer>
std::pair<rref<torch_updates_of<Optimizer>>, std::uint64_t> make_torch_updates(
    const tensor& /*one*/, const std::vector<rref<tensor>>& parameters, const std::vector<std::uint64_t>& groups,
    const std::vector<std::string>& options) {
  rref<torch_updates_of<Optimizer>> made(std::in_place, parameters, groups, options);
  const std::uint64_t number = made.local_value().number();
  return {std::move(made), number};
}

/// Parameters by owner, and where each is among all of them.
struct torch_share {
  worker_info owner;
  std::vector<rref<tensor>> parameters;
  std::vector<std::uint64_t> groups;
  std::vector<std::size_t> positions;
};
std::vector<torch_share> shares_by_owner(const std::vector<std::vector<rref<tensor>>>& groups);

/// Calls `action` for each number below `count`, the index of a share, and waits for all of the futures; then throws the errors of all
/// owners that failed as one, of the kind of the first.
void at_each_owner(const char* what, const std::vector<torch_share>& shares,
                   const std::function<std::function<void()>(std::size_t)>& action);
/// With `make`, all methods of an owner.
void serve_torch_updates(std::uint64_t make);
[[noreturn]] void refuse_torch_context(dist_autograd::context_id in);
[[noreturn]] void refuse_torch_group(std::size_t group, std::size_t groups);
std::string encode_torch_states(const std::vector<std::string>& states);
std::vector<std::string> decode_torch_states(const std::string& text, std::size_t count);

}  // namespace detail

/// Makes steps of an optimizer of torch::optim at the owners of the parameters, on the gradients of a context. What it keeps of a parameter
/// stays at the parameter's owner; it makes the same steps as one Optimizer over all of them. Parameters are references to
/// leaves of libtorch as from_torch() gives them; torch_parameters() and remote_module::remote_parameters() give such.
///
/// at::Tensor::grad() of the parameters is as before after each step. Parameters without a gradient in the context stay as
/// they are, with what is kept of them. Updates of one process come one after the other; another trainer's pass over a graph that
/// saved a parameter's old value fails, as in libtorch.
///
/// Errors, once all owners have answered: one ferry::error whose text has the error of each owner that failed; the others have done what
/// they were asked. step() may be called in several threads at once, everything else by one at a time.
template <class Optimizer>
class distributed_torch_optimizer final : public dist_autograd::update_after {
 public:
  using options_type = typename torch_optimizer_traits<Optimizer>::options_type;
  struct group {
    std::vector<rref<tensor>> parameters = {};
    options_type with;
  };

  distributed_torch_optimizer(std::vector<rref<tensor>> parameters, options_type with)
      : distributed_torch_optimizer(std::vector<group>{{std::move(parameters), std::move(with)}}) {}
  /// One call to each owner. Throws errc::invalid_argument, also for parameters that are no leaves of libtorch, and if there are none.
  explicit distributed_torch_optimizer(const std::vector<group>& groups) : group_count_(groups.size()) {
    std::vector<std::vector<rref<tensor>>> parameters;
    std::vector<std::string> options;
    for (const group& each : groups) {
      parameters.push_back(each.parameters);
      count_ += each.parameters.size();
      options.push_back(detail::encode_torch_options(each.with));
    }
    shares_ = detail::shares_by_owner(parameters);
    at_owners_.resize(shares_.size());
    each_owner("the making of an optimizer", [&](std::size_t i) {
      const detail::torch_share& own = shares_[i];
      future<std::pair<rref<owned>, std::uint64_t>> made =
          own.parameters.front().template rpc_async<&detail::make_torch_updates<Optimizer>>(own.parameters, own.groups,
                                                                                            options);
      return [this, i, made]() mutable { at_owners_[i] = made.get(); };
    });
  }

  /// One call to each owner, all at once. Throws errc::invalid_argument if no owner has the context.
  void step(dist_autograd::context_id in) {
    std::vector<char> known(shares_.size());
    each_owner("a step", [&](std::size_t i) {
      future<bool> done = at_owners_[i].first.template rpc_async<&detail::torch_updates::step>(in);
      return [&known, i, done]() mutable { known[i] = done.get(); };
    });
    for (const bool each : known) {
      if (each) return;
    }
    detail::refuse_torch_context(in);
  }
  /// For schedules.
  void set_lr(double lr, std::size_t group = 0) {
    if (group >= group_count_) detail::refuse_torch_group(group, group_count_);
    each_owner("the change of a learning rate", [&](std::size_t i) {
      future<void> done =
          at_owners_[i].first.template rpc_async<&detail::torch_updates::set_lr>(static_cast<std::uint64_t>(group), lr);
      return [done]() mutable { done.get(); };
    });
  }
  /// For backward(roots, {.then = optimizer}): each parameter is updated within the pass, as soon as its gradient is whole.
  [[nodiscard]] std::vector<updater> updaters() const override {
    std::vector<updater> all;
    for (std::size_t i = 0; i != shares_.size(); ++i) all.push_back({shares_[i].owner.id(), at_owners_[i].second});
    return all;
  }

  /// What the owners keep, by the position of each parameter: it may be loaded where other workers own them. Not the options, which
  /// libtorch's optimizers do not load.
  [[nodiscard]] std::string save() const {
    std::vector<std::string> states(count_);
    each_owner("a checkpoint", [&](std::size_t i) {
      future<std::vector<std::string>> own = at_owners_[i].first.template rpc_async<&detail::torch_updates::states>();
      return [&, i, own]() mutable {
        const std::vector<std::string> found = own.get();
        for (std::size_t at = 0; at != found.size(); ++at) states.at(shares_[i].positions.at(at)) = found[at];
      };
    });
    return detail::encode_torch_states(states);
  }
  /// Throws errc::malformed, errc::truncated, errc::invalid_argument for another number of parameters; nothing has changed then. What libtorch throws for
  /// another optimizer's state comes from the owners, and some of them may have loaded.
  void load(const std::string& saved) {
    const std::vector<std::string> states = detail::decode_torch_states(saved, count_);
    each_owner("the loading of a checkpoint", [&](std::size_t i) {
      std::vector<std::string> own;
      for (const std::size_t position : shares_[i].positions) own.push_back(states[position]);
      future<void> done = at_owners_[i].first.template rpc_async<&detail::torch_updates::load>(own);
      return [done]() mutable { done.get(); };
    });
  }

 private:
  using owned = detail::torch_updates_of<Optimizer>;

  void each_owner(const char* what, const std::function<std::function<void()>(std::size_t)>& action) const {
    detail::at_each_owner(what, shares_, action);
  }

  std::size_t group_count_;
  std::size_t count_ = 0;
  std::vector<detail::torch_share> shares_;
  std::vector<std::pair<rref<owned>, std::uint64_t>> at_owners_;  // of each share; with its number in passes
};

/// Every worker that this process starts later serves distributed_torch_optimizer<Optimizers>... over parameters that it owns, also one
/// that has a list of methods; as serve_optimizers() of <ferry/optim/serve_optimizers.hpp>.
template <class... Optimizers>
void serve_torch_optimizers() {
  (detail::serve_torch_updates(
       detail::usable_method<&detail::make_torch_updates<Optimizers>, detail::method_flavour::object_call>().id),
   ...);
}

}  // namespace ferry::inline v0
