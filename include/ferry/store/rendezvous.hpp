#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ferry/base/time.hpp>
#include <ferry/store/store.hpp>
#include <ferry/store/store_schemes.hpp>
#include <ferry/store/store_traits.hpp>

namespace ferry::inline v0 {

/// What a worker is configured with before it meets the others.
struct rendezvous_options {
  /// "env://" (the default for an empty text), "tcp://host:port" with IPv6 addresses in brackets, "file:///path", each
  /// optionally with "?rank=0&world_size=2".
  std::string init_method = "env://";
  std::optional<int> rank = std::nullopt;
  std::optional<int> world_size = std::nullopt;
  bool dynamic = false;   ///< the group has no fixed size: world_size may stay unset, and WORLD_SIZE is not read
  bool any_size = false;  ///< the same if no size is given anywhere
  bool any_rank = false;  ///< the group will assign a rank: none is looked up, and this process serves no store
  timeout limit = {};     ///< for reaching the store; unset: five minutes
  /// The secret shared by clients and server of a tcp store; empty: as the environment says (base/secret.hpp).
  std::string secret = {};
  /// Rank 0 may serve the store to other machines without a secret; so may the environment.
  bool allow_unauthenticated = false;
};

struct rendezvous_result {
  std::shared_ptr<ferry::store> store;
  std::optional<int> rank;        ///< set unless any_rank
  std::optional<int> world_size;  ///< set unless the group is dynamic
};

/// Opens the store that `options.init_method` names, and finds out rank and world size: from the options or from the
/// query of the init method, but not both, else from the environment (env:// only). With tcp:// and env://, rank 0
/// serves the store as long as it holds it. Throws errc::bad_init_method, errc::missing_environment,
/// errc::invalid_argument (texts that name the part, variable or argument and its value), and what opening the store
/// throws.
rendezvous_result rendezvous(const rendezvous_options& options);

/// The same with the given schemes: rendezvous(store_list<env_scheme, tcp_scheme, my_scheme>{}, options).
rendezvous_result rendezvous(const store_schemes& known, const rendezvous_options& options);

namespace detail {
rendezvous_result rendezvous_with(std::span<const store_scheme> schemes, const rendezvous_options& options);
}

/// The same in arguments.
inline rendezvous_result rendezvous(std::string_view init_method, std::optional<int> rank = std::nullopt,
                                    std::optional<int> world_size = std::nullopt, timeout limit = {}) {
  return rendezvous(rendezvous_options{
      .init_method = std::string(init_method), .rank = rank, .world_size = world_size, .limit = limit});
}

}  // namespace ferry::inline v0
