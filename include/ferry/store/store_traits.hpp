#pragma once

// Maps an init method's scheme to a store: the built-in schemes, and the extension point for others.

#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ferry/base/time.hpp>
#include <ferry/store/store.hpp>

namespace ferry::inline v0 {

/// A parsed init method: "<scheme>://<location>?<query>".
struct rendezvous_request {
  std::string init_method;  ///< the whole text, for messages
  std::string location;
  std::map<std::string, std::string> query;  ///< without rank and world_size, which are below
  std::optional<int> rank;
  std::optional<int> world_size;
  bool dynamic = false;   ///< the group has no fixed size
  bool any_rank = false;  ///< none is needed: the group will assign one
  deadline until;
  std::string secret;  ///< of the group; empty: none
  bool allow_unauthenticated = false;
};

/// Specialise for a tag type to add a scheme:
///
///     struct etcd_scheme {};
///     template <> struct ferry::store_traits<etcd_scheme> {
///       static constexpr std::string_view scheme = "etcd";
///       // Optional: checks the request, and fills in a rank and world size that are known otherwise. Called first.
///       static void resolve(ferry::rendezvous_request& request);
///       // Opens the store; request.rank is set unless any will do, request.world_size unless the
///       // group is dynamic.
///       static std::shared_ptr<ferry::store> open(const ferry::rendezvous_request& request);
///     };
///     static_assert(ferry::rendezvous_store<etcd_scheme>);
///
/// and name a store_list with the tag as worker_config::stores, or pass it to rendezvous().
template <class Tag>
struct store_traits;

/// A tag whose store_traits is complete.
template <class Tag>
concept rendezvous_store = requires(const rendezvous_request& request) {
  { store_traits<Tag>::scheme } -> std::convertible_to<std::string_view>;
  { store_traits<Tag>::open(request) } -> std::convertible_to<std::shared_ptr<store>>;
};

namespace detail {

struct store_scheme {
  std::string_view name;
  void (*resolve)(rendezvous_request&);
  std::shared_ptr<store> (*open)(const rendezvous_request&);
};

template <class Tag>
constexpr store_scheme make_store_scheme() {
  static_assert(
      rendezvous_store<Tag>,
      "this tag is no rendezvous store: specialise ferry::store_traits for it, with a std::string_view `scheme` "
      "and a function `open` that takes a const rendezvous_request& and returns std::shared_ptr<store>");
  store_scheme made{store_traits<Tag>::scheme, nullptr, nullptr};
  made.open = [](const rendezvous_request& request) -> std::shared_ptr<store> {
    return store_traits<Tag>::open(request);
  };
  if constexpr (requires(rendezvous_request& request) { store_traits<Tag>::resolve(request); }) {
    made.resolve = [](rendezvous_request& request) { store_traits<Tag>::resolve(request); };
  }
  return made;
}

template <std::size_t Count>
constexpr bool all_differ(const std::array<store_scheme, Count>& schemes) {
  for (std::size_t i = 0; i < Count; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (schemes[i].name == schemes[j].name) return false;
    }
  }
  return true;
}

}  // namespace detail

/// The schemes that a rendezvous supports, as a type. Two of one name do not compile.
template <class... Tags>
struct store_list {
  static constexpr std::array<detail::store_scheme, sizeof...(Tags)> schemes = {detail::make_store_scheme<Tags>()...};
  static_assert(detail::all_differ(schemes), "two tags of this store_list have the same scheme");
};

/// env:// : rank, world size, host and port from the environment (this_launch()), then as tcp.
struct env_scheme {};
/// tcp://host:port : served by rank 0.
struct tcp_scheme {};
/// file:///path : a file_store.
struct file_scheme {};

template <>
struct store_traits<env_scheme> {
  static constexpr std::string_view scheme = "env";
  static void resolve(rendezvous_request& request);
  static std::shared_ptr<store> open(const rendezvous_request& request);
};
template <>
struct store_traits<tcp_scheme> {
  static constexpr std::string_view scheme = "tcp";
  static void resolve(rendezvous_request& request);
  static std::shared_ptr<store> open(const rendezvous_request& request);
};
template <>
struct store_traits<file_scheme> {
  static constexpr std::string_view scheme = "file";
  static void resolve(rendezvous_request& request);
  static std::shared_ptr<store> open(const rendezvous_request& request);
};

using builtin_stores = store_list<env_scheme, tcp_scheme, file_scheme>;

}  // namespace ferry::inline v0
