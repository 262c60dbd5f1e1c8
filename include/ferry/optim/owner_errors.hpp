#pragma once

// What went wrong at the owners of parameters, all of it.

#include <cstddef>
#include <exception>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ferry/backend/worker_info.hpp>
#include <ferry/base/error.hpp>
#include <ferry/rpc/future.hpp>

namespace ferry::inline v0 {

/// Something was done at several workers at once, and some of them failed: their errors, each with its worker. The text has all of
/// them. kind() is that of the first one, errc::remote_exception if that is no error of ferry.
class owner_errors : public error {
 public:
  struct part {
    worker_info at;
    std::exception_ptr what;
  };

  owner_errors(std::string_view what, std::size_t asked, std::vector<part> parts);
  /// In the order of the owners; at least one.
  [[nodiscard]] const std::vector<part>& parts() const noexcept { return *parts_; }

 private:
  owner_errors(std::string_view what, std::size_t asked, std::shared_ptr<const std::vector<part>> parts);
  std::shared_ptr<const std::vector<part>> parts_;  // shared, so that copying never throws
};

namespace detail {

/// Calls start(i) for each owner, which returns the future of a call, and waits for all of them. Throws owner_errors, once all have
/// ended.
template <class Start>
auto at_owners(std::string_view what, const std::vector<worker_info>& owners, const Start& start) {
  using made_future = decltype(start(std::size_t{0}));
  using value = typename made_future::value_type;
  std::vector<owner_errors::part> failed;
  std::vector<made_future> begun(owners.size());
  for (std::size_t i = 0; i != owners.size(); ++i) {
    try {
      begun[i] = start(i);
    } catch (...) {
      failed.push_back({owners[i], current_error()});
    }
  }
  std::vector<std::conditional_t<std::is_void_v<value>, char, value>> results(owners.size());
  for (std::size_t i = 0; i != owners.size(); ++i) {
    if (!begun[i].valid()) continue;
    try {
      if constexpr (std::is_void_v<value>) {
        begun[i].get();
      } else {
        results[i] = std::move(begun[i]).get();
      }
    } catch (...) {
      failed.push_back({owners[i], current_error()});
    }
  }
  if (!failed.empty()) throw owner_errors(what, owners.size(), std::move(failed));
  if constexpr (!std::is_void_v<value>) return results;
}

}  // namespace detail
}  // namespace ferry::inline v0
