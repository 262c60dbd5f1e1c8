#pragma once

// Backends: what makes the agent of a worker. Each is a specialisation of backend_traits; the set a program is built with
// is a type, and one of it is picked by name at run time.

#include <array>
#include <concepts>
#include <memory>
#include <string>
#include <string_view>

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
/// init() makes the agent, which has not joined its group yet: agent::join does.
template <class Tag>
struct backend_traits;

template <class Tag>
concept rpc_backend = requires(rpc_options base, std::shared_ptr<store> group_store, const worker_config& config) {
  { backend_traits<Tag>::name } -> std::convertible_to<std::string_view>;
  requires std::derived_from<typename backend_traits<Tag>::options_type, rpc_options>;
  { backend_traits<Tag>::construct_options(base) } -> std::same_as<typename backend_traits<Tag>::options_type>;
  {
    backend_traits<Tag>::init(group_store, config, backend_traits<Tag>::construct_options(base))
  } -> std::same_as<std::unique_ptr<agent>>;
};

/// A backend chosen at compile time, as a value.
struct backend_factory {
  std::string_view name;
  std::unique_ptr<agent> (*init)(std::shared_ptr<store>, const worker_config&, const rpc_options&);
};

namespace detail {
template <class Tag>
std::unique_ptr<agent> init_backend(std::shared_ptr<store> group_store, const worker_config& config,
                                    const rpc_options& base) {
  using traits = backend_traits<Tag>;
  return traits::init(std::move(group_store), config, traits::construct_options(base));
}

template <class... Tags>
consteval bool names_are_unique() {
  const std::array<std::string_view, sizeof...(Tags)> names{backend_traits<Tags>::name...};
  for (std::size_t i = 0; i != names.size(); ++i) {
    for (std::size_t j = i + 1; j != names.size(); ++j) {
      if (names[i] == names[j]) return false;
    }
  }
  return true;
}

[[noreturn]] void throw_unknown_backend(std::string_view wanted, const backend_factory* known, std::size_t count);
}  // namespace detail

/// The backends a program is built with: `backend_list<native, my_backend>`. The first is the default.
template <class... Tags>
struct backend_list {
  static_assert(sizeof...(Tags) != 0,
                "ferry: a backend_list names at least one backend, for example backend_list<native>");
  static_assert((rpc_backend<Tags> && ...),
                "ferry: a backend tag needs a specialisation of ferry::backend_traits with name, options_type, "
                "construct_options(rpc_options) and init(store, config, options); see ferry/backend/backend.hpp");
  static_assert(detail::names_are_unique<Tags...>(), "ferry: two backends of a backend_list have the same name");

  static std::array<backend_factory, sizeof...(Tags)> factories() {
    return {backend_factory{backend_traits<Tags>::name, &detail::init_backend<Tags>}...};
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

/// The backend of this library, over the transports of a transport_list.
template <class Transports = default_transports>
struct native_over {};
using native = native_over<>;

struct native_options : rpc_options {};

namespace detail {
std::unique_ptr<agent> make_native_agent(std::shared_ptr<store> group_store, const worker_config& config,
                                         const rpc_options& options, std::vector<transport_factory> transports);
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
