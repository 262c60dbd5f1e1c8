#pragma once

// Workers that serve a list of methods and nothing else.

#include <cstdint>
#include <vector>

#include <ferry/backend/served_methods.hpp>
#include <ferry/rpc/call.hpp>

namespace ferry::inline v0 {

template <auto... F>
struct serve_list_t {
  operator served_methods() const {  // NOLINT(google-explicit-constructor): for worker_config::serve
    return served_methods(std::vector<std::uint64_t>{detail::usable_method<detail::resolve<F>::function>().id...});
  }
};
/// The methods F..., for worker_config::serve: `init_rpc({.name = "server", .serve = ferry::serve_list<dot, scale>})`.
/// Empty: the worker serves nothing. Naming a function here also makes it part of the program, from a static archive, too.
/// make<T> needs its argument types: make<T, int>. A stub<> stands for a method that a plug-in will bring.
template <auto... F>
inline constexpr serve_list_t<F...> serve_list{};

/// Makes methods part of this program or library without calling or listing them, from when it is loaded until it goes.
/// At namespace scope: `const ferry::provide<dot, ferry::named<"scale", scale>> methods;`. For plug-ins.
template <auto... F>
struct provide {
  provide() { ((void)detail::usable_method<detail::resolve<F>::function>(), ...); }
};

/// The same as serve_list for every worker of this process that starts later and has no list of its own: these methods, those of
/// earlier calls of serve, and nothing else. A call of any other method ends with errc::unknown_method. Thread-safe.
template <auto... F>
void serve() {
  detail::add_served_methods({detail::usable_method<detail::resolve<F>::function>().id...});
}

}  // namespace ferry::inline v0
