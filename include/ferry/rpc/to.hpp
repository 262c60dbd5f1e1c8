#pragma once

// Destination and options of a call.

#include <concepts>
#include <cstddef>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include <ferry/backend/worker_info.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/base/time.hpp>

namespace ferry::inline v0 {

/// A borrowed std::stop_token; it must live until the call function has returned (the function copies it if it needs it
/// longer).
class stop_ref {
 public:
  constexpr stop_ref() noexcept = default;
  stop_ref(const std::stop_token& token) noexcept : token_(&token) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] const std::stop_token* get() const noexcept { return token_; }

 private:
  const std::stop_token* token_ = nullptr;
};

class device_map;

/// A borrowed device_map; it must live until the call function has returned.
class placement_ref {
 public:
  constexpr placement_ref() noexcept = default;
  placement_ref(const device_map& map) noexcept : map_(&map) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] const device_map* get() const noexcept { return map_; }

 private:
  const device_map* map_ = nullptr;
};

class stream;

/// Borrowed streams, at most one per device; they must live until the call function has returned.
class streams_ref {
 public:
  constexpr streams_ref() noexcept = default;
  streams_ref(const stream& one) noexcept : first_(&one), count_(1) {}  // NOLINT(google-explicit-constructor)
  streams_ref(std::span<const stream> several) noexcept                 // NOLINT(google-explicit-constructor)
      : first_(several.data()), count_(several.size()) {}
  [[nodiscard]] const stream* first() const noexcept { return first_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  const stream* first_ = nullptr;
  std::size_t count_ = 0;
};

/// Options of a call. Every member is trivially destructible, because g++ 12 destroys braced non-trivial temporaries
/// twice inside co_await.
struct call_options {
  ferry::timeout timeout = {};   ///< unset: the worker's default; no_timeout or zero: no limit
  stop_ref stop = {};            ///< stopping it cancels the call
  placement_ref placement = {};  ///< replaces the device map for the callee, for this call and its result
  /// Replace the thread's current streams of their devices: the arguments are read in the order of these streams, and
  /// they wait for the result of a blocking call.
  streams_ref streams = {};
};

namespace detail {
/// Whether the arguments of a call begin with its options.
template <class... A>
inline constexpr bool begins_with_options = false;
template <class First, class... Rest>
inline constexpr bool begins_with_options<First, Rest...> = std::is_same_v<std::remove_cvref_t<First>, call_options>;
}  // namespace detail

/// The destination of a call: a worker by name, id or worker_info, with options. Borrows the name; used as a parameter.
///
///     rpc_sync<f>("worker1", ...)                          rpc_sync<f>(1, ...)
///     rpc_async<f>({"worker1", {.timeout = 5s}}, ...)      rpc_async<f>(info, ...)
class to {
 public:
  to(const char* name, const call_options& options = {}) noexcept  // NOLINT(google-explicit-constructor)
      : name_(name ? name : ""), options_(options) {}
  to(std::string_view name, const call_options& options = {}) noexcept  // NOLINT(google-explicit-constructor)
      : name_(name), options_(options) {}
  to(const std::string& name, const call_options& options = {}) noexcept  // NOLINT(google-explicit-constructor)
      : name_(name), options_(options) {}
  template <detail::worker_number Id>
  to(Id id, const call_options& options = {}) noexcept  // NOLINT(google-explicit-constructor)
      : id_(detail::worker_id_of(id)), by_id_(true), options_(options) {}
  to(worker_id id, const call_options& options = {}) noexcept  // NOLINT(google-explicit-constructor)
      : id_(id), by_id_(true), options_(options) {}
  to(const worker_info& info, const call_options& options = {}) noexcept  // NOLINT(google-explicit-constructor)
      : name_(info.name()), id_(info.id()), by_id_(true), options_(options) {}
  template <std::floating_point Id>
  to(Id, const call_options& = {}) = delete;  // an id is an integer

  [[nodiscard]] bool by_id() const noexcept { return by_id_; }
  [[nodiscard]] worker_id id() const noexcept { return id_; }
  /// Empty if only the id was given.
  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  [[nodiscard]] const call_options& options() const noexcept { return options_; }

 private:
  std::string_view name_;
  worker_id id_;
  bool by_id_ = false;
  call_options options_;
};

}  // namespace ferry::inline v0
