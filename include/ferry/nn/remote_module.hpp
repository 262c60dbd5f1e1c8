#pragma once

// A module that another worker has, to be called like one's own.
//
//   ferry::remote_module<classifier> net("worker1/cuda:0", 64, 10);      // classifier(64, 10), there
//   ferry::tensor y = net.forward(x);
//   ferry::distributed_optimizer<ferry::adam> optimizer(net.remote_parameters());

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ferry/autograd/dist/update_turn.hpp>
#include <ferry/device/device.hpp>
#include <ferry/nn/module.hpp>
#include <ferry/rpc/call.hpp>
#include <ferry/rpc/rref.hpp>
#include <ferry/rpc/to.hpp>
#include <ferry/rpc/worker.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

template <class M>
class remote_module;

/// Customisation point: modules that a remote_module can have. ferry's own are (<ferry/nn/module.hpp>); for those of another library,
/// specialise it.
///
///     template <> struct ferry::remote_module_traits<their_module> {
///       static void to(their_module& m, ferry::device where);                          // moves its parameters
///       static void train(their_module& m, bool training);
///       static std::vector<ferry::tensor> parameters(const their_module& m);           // leaves
///       static auto forward(their_module& m, auto&&... args);        // optional; else m(args...)
///       static their_tensor moved(their_tensor t, ferry::device where);   // optional: for arguments and results
///     };
template <class M>
struct remote_module_traits;

template <nn::module M>
struct remote_module_traits<M> {
  static void to(M& m, device where) { nn::to(m, where); }
  static void train(M& m, bool training) { nn::train(m, training); }
  static std::vector<tensor> parameters(const M& m) { return nn::parameters(m); }
};

template <class M>
concept remotable_module = requires(M& m, device where) {
  remote_module_traits<M>::to(m, where);
  remote_module_traits<M>::train(m, true);
  { remote_module_traits<M>::parameters(m) } -> std::same_as<std::vector<tensor>>;
};

namespace detail {

template <class M>
inline constexpr bool is_remote_module<remote_module<M>> = true;

/// Where a module is to be: "worker1/cuda:0", "rank:1/cpu", "worker1", "rank:1", "cuda:1".
struct module_place {
  std::string worker;                ///< empty: see `rank`
  std::optional<std::int32_t> rank;  ///< neither: this worker
  device on;
};
/// Throws errc::invalid_argument, errc::bad_device for texts that are not made so, each with its reason.
module_place parse_module_place(std::string_view where);
/// That worker. Throws errc::unknown_worker.
worker_info find_worker(worker_core& from, const module_place& place);
/// Whether results on devices come as they are to the worker that has this reference: its calls have a map.
bool has_device_map(const reference_handle& owner, const call_options& calls);

// At the owner.

/// A device, as it is sent.
struct sent_device {
  std::uint8_t kind = 0;
  std::int32_t index = 0;

  sent_device() noexcept = default;
  explicit sent_device(device where) noexcept : kind(static_cast<std::uint8_t>(where.kind)), index(where.index) {}
  [[nodiscard]] device where() const noexcept { return {static_cast<device_kind>(kind), index}; }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(kind, index);
  }
};

/// A tensor on another device; other values as they are.
template <class M, class T>
T moved_to(T value, device where) {
  if constexpr (std::is_same_v<T, tensor>) {
    return value.defined() ? value.to(where) : value;
  } else if constexpr (requires { remote_module_traits<M>::moved(std::move(value), where); }) {
    return remote_module_traits<M>::moved(std::move(value), where);
  } else {
    return value;
  }
}
/// An argument that came on the CPU goes to the module's device.
template <class M, class T>
T argument_on(T value, device where) {
  if (where.is_cpu()) return value;
  if constexpr (std::is_same_v<T, tensor>) {
    if (value.defined() && !value.device().is_cpu()) return value;
  } else if constexpr (foreign_tensor<T>) {
    if (const tensor same = tensor_traits<T>::to_tensor(value); same.defined() && !same.device().is_cpu()) return value;
  }
  return moved_to<M>(std::move(value), where);
}
/// The tensors on top of a result.
template <class M>
struct result_on_cpu {
  template <class T>
  T operator()(T value) const {
    return moved_to<M>(std::move(value), device{});
  }
  template <class T>
  std::vector<T> operator()(std::vector<T> all) const {
    if constexpr (!std::is_arithmetic_v<T>) {
      for (T& each : all) each = moved_to<M>(std::move(each), device{});
    }
    return all;
  }
  template <class A, class B>
  std::pair<A, B> operator()(std::pair<A, B> both) const {
    return {moved_to<M>(std::move(both.first), device{}), moved_to<M>(std::move(both.second), device{})};
  }
  template <class... T>
  std::tuple<T...> operator()(std::tuple<T...> all) const {
    return std::apply([](T&... each) { return std::tuple<T...>(moved_to<M>(std::move(each), device{})...); }, all);
  }
};

template <class M, class... A>
M make_module(sent_device on, A... args) {
  M made = construct<M, A...>(std::move(args)...);
  if (!on.where().is_cpu()) remote_module_traits<M>::to(made, on.where());
  return made;
}

template <class M, class... A>
decltype(auto) call_module(M& m, A&&... args) {
  if constexpr (requires { remote_module_traits<M>::forward(m, std::forward<A>(args)...); }) {
    return remote_module_traits<M>::forward(m, std::forward<A>(args)...);
  } else {
    static_assert(std::is_invocable_v<M&, A...>,
                  "ferry: forward() of a remote module was given arguments with which the module cannot be called");
    return m(std::forward<A>(args)...);
  }
}

/// `device_results`: they stay where they are.
template <class M, class... A>
auto forward_module(M& m, sent_device on, bool device_results, A... args) {
  dist_autograd::wait_for_updates();
  using result = std::remove_cvref_t<decltype(call_module(m, std::move(args)...))>;
  if constexpr (std::is_void_v<result>) {
    call_module(m, argument_on<M>(std::move(args), on.where())...);
  } else {
    result made = call_module(m, argument_on<M>(std::move(args), on.where())...);
    if (!device_results) made = result_on_cpu<M>()(std::move(made));
    return made;
  }
}
template <class M>
void train_module(M& m, bool training) {
  remote_module_traits<M>::train(m, training);
}
template <class M>
std::vector<rref<tensor>> parameters_of_module(M& m) {
  std::vector<rref<tensor>> all;
  for (tensor& each : remote_module_traits<M>::parameters(m)) all.push_back(rref<tensor>(std::move(each)));
  return all;
}

}  // namespace detail

/// A handle to a module of another worker, or of this one. Copies, and those that are sent to other workers, lead to the same module,
/// which lives as long as any of them. What it computes there takes part in distributed autograd as any call does.
///
/// Where it is: "worker1/cuda:0", "rank:1/cuda:0"; "worker1", "rank:1" (on the CPU); a device alone: at this worker.
///
/// A module on a CUDA device gets tensors among the arguments that come on the CPU on its device: those on top, not those in containers.
/// Tensors on top of the result, in pairs, tuples and vectors, too, come as they are to a worker whose calls have a device map for the
/// owner, and to others on the CPU.
///
/// It has what is declared here. For all else that a module can do, call a function on module_rref(), which takes the module as its
/// first argument.
///
/// Functions that call throw what calls on references throw (ferry::rref): the errors of the constructor, of the move to the device
/// and of the worker's absence come with the first use. Thread-safe as std::shared_ptr is. Several calls may run at once in the
/// module, unless object_traits<M> says otherwise.
template <class M>
class remote_module {
  static_assert(
      remotable_module<M>,
      "ferry: a remote_module needs a module: give the type a member template <class Visit> void "
      "visit_members(Visit&& visit) that calls visit(\"name\", member) for each of its tensors and modules (see "
      "<ferry/nn/module.hpp>), or specialise ferry::remote_module_traits for a type of another library");

 public:
  using module_type = M;

  /// Empty: every use throws errc::invalid_argument.
  remote_module() noexcept = default;
  /// Makes M(args...) there, as a worker's remote() does, and returns at once. Throws errc::invalid_argument, errc::bad_device for a text
  /// that says no place, errc::unknown_worker, and as ferry::remote.
  template <class... A>
  explicit remote_module(std::string_view where, const A&... args)
      : remote_module(detail::current_worker(), where, args...) {}
  /// The same of that worker instead of the current one; for processes with several workers.
  template <class... A>
  remote_module(const worker& from, std::string_view where, const A&... args)
      : remote_module(from.core(), where, args...) {}
  /// Of a module that is there already, and on that device.
  [[nodiscard]] static remote_module from_rref(device on, rref<M> module) {
    remote_module made;
    made.on_ = detail::sent_device(on);
    made.module_ = std::move(module);
    return made;
  }

  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(module_); }
  [[nodiscard]] worker_info owner() const { return module_.owner(); }
  /// Where its parameters are, at the owner.
  [[nodiscard]] ferry::device device() const noexcept { return on_.where(); }

  /// Calls the module, and waits for its result.
  template <class... A>
    requires(!detail::begins_with_options<A...>)
  auto forward(A&&... args) const {
    return forward(call_options{}, std::forward<A>(args)...);
  }
  template <class... A>
  auto forward(const call_options& calls, A&&... args) const {
    return module_.template rpc_sync<&detail::forward_module<M, detail::deduced_wire_type<std::remove_cvref_t<A>>...>>(
        calls, on_, detail::has_device_map(module_.handle(), calls), std::forward<A>(args)...);
  }
  /// The same without waiting.
  template <class... A>
    requires(!detail::begins_with_options<A...>)
  [[nodiscard]] auto forward_async(A&&... args) const {
    return forward_async(call_options{}, std::forward<A>(args)...);
  }
  template <class... A>
  [[nodiscard]] auto forward_async(const call_options& calls, A&&... args) const {
    return module_.template rpc_async<&detail::forward_module<M, detail::deduced_wire_type<std::remove_cvref_t<A>>...>>(
        calls, on_, detail::has_device_map(module_.handle(), calls), std::forward<A>(args)...);
  }

  /// References to its parameters, in the order of nn::parameters(): for optimizers.
  [[nodiscard]] std::vector<rref<tensor>> remote_parameters(const call_options& calls = {}) const {
    return module_.template rpc_sync<&detail::parameters_of_module<M>>(calls);
  }
  /// nn::train() and nn::eval() of the module.
  void train(bool training = true, const call_options& calls = {}) const {
    module_.template rpc_sync<&detail::train_module<M>>(calls, training);
  }
  void eval(const call_options& calls = {}) const { train(false, calls); }

  [[nodiscard]] const rref<M>& module_rref() const noexcept { return module_; }

  friend bool operator==(const remote_module& a, const remote_module& b) noexcept { return a.module_ == b.module_; }

  // Only between workers, as references.
  template <class Archive>
  void serialize(Archive& archive) {
    archive(on_, module_);
  }

 private:
  template <class... A>
  remote_module(std::shared_ptr<detail::worker_core> from, std::string_view where, const A&... args) {
    const detail::module_place place = detail::parse_module_place(where);
    const worker_info owner = detail::find_worker(*from, place);
    on_ = detail::sent_device(place.on);
    module_ =
        detail::create<&detail::make_module<M, detail::deduced_wire_type<A>...>>(std::move(from), owner, on_, args...);
  }

  detail::sent_device on_;
  rref<M> module_;
};

}  // namespace ferry::inline v0
