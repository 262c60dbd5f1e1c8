#pragma once

// Backends: each creates the agent of a worker and is a specialisation of backend_traits. The set that a program is
// built with is a type; one of them is selected by name at run time.

#include <array>
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ferry/backend/agent.hpp>
#include <ferry/backend/options.hpp>
#include <ferry/base/error.hpp>
#include <ferry/store/store.hpp>

namespace ferry::inline v0 {

/// Customisation point: specialise for a tag type.
///   static constexpr std::string_view name;       unique in a backend_list
///   using options_type = ...;                     derives from ferry::rpc_options
///   static options_type construct_options(ferry::rpc_options base);
///   static std::unique_ptr<ferry::agent> init(std::shared_ptr<ferry::store>, const ferry::worker_config&,
///                                             const options_type&);
/// init() creates the agent, which has not joined its group yet: agent::join does. An options_type with
/// `using backend = my_backend;` lets init_rpc(config, my_options{...}) find its backend.
template <class Tag>
struct backend_traits;

namespace detail {
template <class Tag>
concept has_backend_traits = requires { sizeof(backend_traits<Tag>); };
template <class Tag>
concept has_backend_name = requires {
  { backend_traits<Tag>::name } -> std::convertible_to<std::string_view>;
};
template <class Tag>
concept has_backend_options = requires { typename backend_traits<Tag>::options_type; } &&
                              std::derived_from<typename backend_traits<Tag>::options_type, rpc_options>;
template <class Tag>
concept constructs_backend_options = has_backend_options<Tag> && requires(rpc_options base) {
  { backend_traits<Tag>::construct_options(base) } -> std::same_as<typename backend_traits<Tag>::options_type>;
};
template <class Tag>
concept inits_backend =
    has_backend_options<Tag> && requires(std::shared_ptr<store> group_store, const worker_config& config,
                                         const typename backend_traits<Tag>::options_type& options) {
      { backend_traits<Tag>::init(group_store, config, options) } -> std::same_as<std::unique_ptr<agent>>;
    };
}  // namespace detail

/// A tag whose backend_traits is complete.
template <class Tag>
concept rpc_backend =
    detail::has_backend_name<Tag> && detail::constructs_backend_options<Tag> && detail::inits_backend<Tag>;

/// A backend chosen at compile time, as a value.
struct backend_factory {
  std::string_view name;
  std::unique_ptr<agent> (*init)(std::shared_ptr<store>, const worker_config&, const rpc_options&);
};

template <class... Tags>
struct backend_list;

namespace detail {
/// Instantiated for a tag, reports why it is not a backend.
template <class Tag>
struct backend_diagnosis {
  static constexpr bool there = has_backend_traits<Tag>;
  static_assert(there,
                "ferry: this type is no backend: specialise ferry::backend_traits for it, as ferry/backend/backend.hpp "
                "shows");
  static_assert(!there || has_backend_name<Tag>,
                "ferry: backend_traits of this backend lacks `name`: add static constexpr std::string_view name = "
                "\"my_backend\";");
  static_assert(
      !there || requires { typename backend_traits<Tag>::options_type; },
      "ferry: backend_traits of this backend lacks `options_type`: add using options_type = my_options; where "
      "my_options derives from ferry::rpc_options");
  static_assert(
      !requires { typename backend_traits<Tag>::options_type; } || has_backend_options<Tag>,
      "ferry: `options_type` of this backend does not derive (publicly) from ferry::rpc_options");
  static_assert(!has_backend_options<Tag> || constructs_backend_options<Tag>,
                "ferry: backend_traits of this backend lacks `construct_options`: add static options_type "
                "construct_options(ferry::rpc_options base);");
  static_assert(!has_backend_options<Tag> || inits_backend<Tag>,
                "ferry: backend_traits of this backend lacks `init`: add static std::unique_ptr<ferry::agent> "
                "init(std::shared_ptr<ferry::store>, const ferry::worker_config&, const options_type&);");
};

template <class Tag>
std::unique_ptr<agent> init_backend(std::shared_ptr<store> group_store, const worker_config& config,
                                    const rpc_options& base) {
  using traits = backend_traits<Tag>;
  return traits::init(std::move(group_store), config, traits::construct_options(base));
}

template <class... Tags>
consteval bool backends_differ_in_name() {
  if constexpr ((has_backend_name<Tags> && ...)) {
    const std::array<std::string_view, sizeof...(Tags)> names{backend_traits<Tags>::name...};
    for (std::size_t i = 0; i != names.size(); ++i) {
      for (std::size_t j = i + 1; j != names.size(); ++j) {
        if (names[i] == names[j]) return false;
      }
    }
  }
  return true;
}

[[noreturn]] void throw_unknown_backend(std::string_view wanted, const backend_factory* known, std::size_t count);
[[noreturn]] void throw_foreign_options(std::string_view backend, std::string_view wanted, std::string_view given);

template <class Tag, class Options>
inline constexpr bool takes_options = false;
template <class Tag, class Options>
  requires has_backend_options<Tag>
inline constexpr bool takes_options<Tag, Options> = std::same_as<typename backend_traits<Tag>::options_type, Options>;

template <class Options, class Tag, class... Rest>
struct first_taker
    : std::conditional_t<takes_options<Tag, Options>, std::type_identity<Tag>, first_taker<Options, Rest...>> {};
template <class Options, class Last>
struct first_taker<Options, Last> : std::type_identity<Last> {};

/// The backend of a list whose options_type is exactly Options.
template <class Options, class... Tags>
struct inferred_backend : first_taker<Options, Tags...> {
  static constexpr int takers = (int{takes_options<Tags, Options>} + ...);
  static_assert(takers != 0, "ferry: no backend of this backend_list has this options_type, so none can be inferred");
  static_assert(
      takers < 2,
      "ferry: several backends of this backend_list have this options_type, so none can be inferred; say which "
      "one is meant: init_rpc<my_backend>(config, options)");
};
}  // namespace detail

/// The backends a program is built with: `backend_list<native, my_backend>`. The first is the default.
template <class... Tags>
struct backend_list {
  static_assert(sizeof...(Tags) != 0,
                "ferry: a backend_list names at least one backend, for example backend_list<native>");
  static_assert(((sizeof(detail::backend_diagnosis<Tags>) != 0) && ...));
  static_assert(detail::backends_differ_in_name<Tags...>(), "ferry: two backends of a backend_list have the same name");

  static std::array<backend_factory, sizeof...(Tags)> factories() {
    if constexpr ((rpc_backend<Tags> && ...)) {  // else one message is enough
      return {backend_factory{backend_traits<Tags>::name, &detail::init_backend<Tags>}...};
    } else {
      return {};
    }
  }
  /// The backend of that name; throws errc::unknown_backend listing the known ones.
  static backend_factory find(std::string_view name) {
    const auto known = factories();
    for (const auto& factory : known) {
      if (factory.name == name) return factory;
    }
    detail::throw_unknown_backend(name, known.data(), known.size());
  }
};

/// Whether the list has a backend of that name.
template <class... Tags>
[[nodiscard]] constexpr bool backend_registered(backend_list<Tags...>, std::string_view name) noexcept {
  return ((backend_traits<Tags>::name == name) || ...);
}

/// The options of a backend, made from the common ones; change them and pass them to init_rpc.
template <class Backend>
[[nodiscard]] auto construct_rpc_backend_options(rpc_options base = {}) {
  static_assert(sizeof(detail::backend_diagnosis<Backend>) != 0);
  if constexpr (rpc_backend<Backend>) return backend_traits<Backend>::construct_options(std::move(base));
}

/// The backend of this library, over the transports of a transport_list.
template <class Transports = default_transports>
struct native_over {};
using native = native_over<>;

struct native_options : rpc_options {
  using backend = native;
};

namespace detail {
/// `devices`: those of the worker; the group's device maps are checked against them. None: those of the process, which are
/// counted once an option of a worker of the group names one.
std::unique_ptr<agent> make_native_agent(std::shared_ptr<store> group_store, const worker_config& config,
                                         const rpc_options& options, std::vector<transport_factory> transports,
                                         std::optional<device_counts> devices = std::nullopt);
}

template <class Transports>
struct backend_traits<native_over<Transports>> {
  static constexpr std::string_view name = "native";
  using options_type = native_options;
  static options_type construct_options(rpc_options base) { return {std::move(base)}; }
  static std::unique_ptr<agent> init(std::shared_ptr<store> group_store, const worker_config& config,
                                     const options_type& options) {
    return detail::make_native_agent(std::move(group_store), config, options, Transports::factories());
  }
};
static_assert(rpc_backend<native>);

}  // namespace ferry::inline v0
