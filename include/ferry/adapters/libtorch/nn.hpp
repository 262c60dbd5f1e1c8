#pragma once

// Modules of torch::nn behind references, and in remote_module.
//
//   struct half_impl : torch::nn::Module { explicit half_impl(int width); at::Tensor forward(const at::Tensor& x); };
//   TORCH_MODULE_IMPL(half, half_impl);
//
//   ferry::rref<half_impl> there = ferry::remote<ferry::make<half_impl>>("worker1", 64);
//   at::Tensor y = there.rpc_sync<&half_impl::forward>(x);
//   ferry::remote_module<half> net("worker1/cuda:0", 64);                   // the same, on a device
//   at::Tensor z = net.forward(x);
//   std::vector<ferry::rref<ferry::tensor>> parameters = ferry::torch_parameters(there);   // for optimizers

#include <concepts>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <ferry/adapters/libtorch/tensor.hpp>
#include <ferry/device/device.hpp>
#include <ferry/rpc/call.hpp>
#include <ferry/rpc/rref.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// A module derived from torch::nn::Module, or what holds one (torch::nn::ModuleHolder, std::shared_ptr).
template <class M>
concept torch_module = std::derived_from<M, torch::nn::Module> || requires(M& m) {
  { *m } -> std::convertible_to<torch::nn::Module&>;
};

namespace detail {

template <class M>
auto& torch_module_of(M& m) {
  if constexpr (std::derived_from<std::remove_const_t<M>, torch::nn::Module>) {
    return m;
  } else {
    return *m;
  }
}

std::vector<tensor> parameters_of_torch(const torch::nn::Module& m);
void move_torch_module(torch::nn::Module& m, device where);

template <torch_module M>
std::vector<rref<tensor>> torch_parameter_references(M& m) {
  std::vector<rref<tensor>> all;
  for (tensor& each : parameters_of_torch(torch_module_of(m))) all.emplace_back(std::move(each));
  return all;
}

}  // namespace detail

/// References to the parameters of a module that require a gradient, in its order. Calls the owner.
template <torch_module M>
[[nodiscard]] std::vector<rref<tensor>> torch_parameters(const rref<M>& module, const call_options& calls = {}) {
  return module.template rpc_sync<&detail::torch_parameter_references<M>>(calls);
}

/// Every worker that this process starts later answers torch_parameters() for such modules, also one that has a list of methods.
template <torch_module... M>
void serve_torch_parameters() {
  detail::add_library_methods(
      {detail::usable_method<&detail::torch_parameter_references<M>, detail::method_flavour::object_call>().id...});
}

template <class M>
struct remote_module_traits;  // <ferry/nn/remote_module.hpp>

/// What a remote_module does with it.
template <torch_module M>
struct remote_module_traits<M> {
  static void to(M& m, device where) { detail::move_torch_module(detail::torch_module_of(m), where); }
  static void train(M& m, bool training) { detail::torch_module_of(m).train(training); }
  static std::vector<tensor> parameters(const M& m) { return detail::parameters_of_torch(detail::torch_module_of(m)); }
  template <class... A>
  static decltype(auto) forward(M& m, A&&... args) {
    return detail::torch_module_of(m).forward(std::forward<A>(args)...);
  }
  static at::Tensor moved(const at::Tensor& t, device where) { return t.defined() ? t.to(to_torch(where)) : t; }
};

}  // namespace ferry::inline v0
