#pragma once

// What a worker with a list of methods serves for handles to its modules.

#include <cstdint>
#include <vector>

#include <ferry/nn/remote_module.hpp>
#include <ferry/rpc/detail/method_entry.hpp>

namespace ferry::inline v0 {

// Arguments as they travel: std::string for text, otherwise the types of what is passed, without const and &.

/// In serve_module: the module is made from such arguments.
template <class... A>
struct made_from {};
/// In serve_module: forward() is called with such arguments.
template <class... A>
struct called_with {};

namespace detail {

template <class M, class Use>
struct module_use {
  static_assert(sizeof(Use) == 0,
                "ferry: serve_module takes, after the module, made_from<arguments...> and called_with<arguments...>");
};
template <class M, class... A>
struct module_use<M, made_from<A...>> {
  static std::uint64_t id() { return usable_method<&make_module<M, A...>, method_flavour::creation>().id; }
};
template <class M, class... A>
struct module_use<M, called_with<A...>> {
  static std::uint64_t id() { return usable_method<&forward_module<M, A...>, method_flavour::object_call>().id; }
};

}  // namespace detail

/// Every worker that this process starts later serves remote_module<M>, also one that has a list of methods: to be made and called in
/// these ways, asked for parameters, and trained. In main(), beside ferry::serve<...>():
///
///     ferry::serve_module<classifier, ferry::made_from<int, int>, ferry::called_with<ferry::tensor>>();
///
/// Functions that are called on module_rref() stand in the list as any other. Restricts nothing; several calls add up. A binary that has no
/// such handle of its own links the code by that, too. Thread-safe.
template <class M, class... Uses>
void serve_module() {
  static_assert(remotable_module<M>, "ferry: serve_module takes a module, as remote_module does");
  constexpr auto object_call = detail::method_flavour::object_call;
  detail::add_library_methods({detail::usable_method<&detail::parameters_of_module<M>, object_call>().id,
                               detail::usable_method<&detail::train_module<M>, object_call>().id,
                               detail::module_use<M, Uses>::id()...});
}

}  // namespace ferry::inline v0
