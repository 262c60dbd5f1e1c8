#pragma once

// Which schemes of init methods are known: those of a store_list, as a value.

#include <cstddef>
#include <span>

namespace ferry::inline v0 {

template <class... Tags>
struct store_list;  // <ferry/store/store_traits.hpp>

namespace detail {
struct store_scheme;
}

/// The schemes that an init method may have. Made from a list, for which <ferry/store/store_traits.hpp> is needed:
///
///     ferry::init_rpc({.init_method = "etcd://10.0.0.1/job7", .stores = ferry::store_list<ferry::env_scheme, etcd_scheme>{}});
///
/// One that was made of no list: env, tcp and file. It refers to the list as long as it is used: a plug-in with a scheme stays loaded.
class store_schemes {
 public:
  constexpr store_schemes() noexcept = default;
  template <class... Tags>
  constexpr store_schemes(
      store_list<Tags...>) noexcept  // NOLINT(google-explicit-constructor): a list is meant to be passed
    requires(sizeof...(Tags) != 0)
      : first_(store_list<Tags...>::schemes.data()), count_(store_list<Tags...>::schemes.size()) {}

  [[nodiscard]] std::span<const detail::store_scheme> all() const noexcept;

 private:
  const detail::store_scheme* first_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace ferry::inline v0
