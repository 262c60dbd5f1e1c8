#pragma once

// The store of a group as the library uses it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/store/store.hpp>

namespace ferry::inline v0::detail {

/// A store without default timeouts: every request carries the deadline of the operation that it is part of. The
/// functions do what those of store do, and throw the same errors. Thread-safe.
class bounded_store {
 public:
  explicit bounded_store(std::shared_ptr<store> where) noexcept : store_(std::move(where)) {}

  void set(std::string_view key, std::string_view value, deadline until) const;
  [[nodiscard]] std::string get(std::string_view key, deadline until) const;
  [[nodiscard]] std::vector<std::string> get(std::span<const std::string> keys, deadline until) const;
  [[nodiscard]] std::optional<std::string> try_get(std::string_view key, deadline until) const;
  void wait(std::string_view key, deadline until) const;
  std::int64_t add(std::string_view key, std::int64_t delta, deadline until) const;
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          deadline until) const;
  bool erase(std::string_view key, deadline until) const;
  [[nodiscard]] std::vector<store_entry> list(std::string_view prefix, deadline until) const;
  store_change wait_change(std::string_view key, std::uint64_t last_version, deadline until) const;

  /// The keys below `prefix` and a slash.
  [[nodiscard]] std::shared_ptr<bounded_store> below(std::string_view prefix) const;

  /// Closes the store because it cannot answer any more: every request in progress and every later one fails with
  /// errc::store_unreachable and the first reason given.
  void give_up(const std::string& reason) noexcept;
  void close() const noexcept { store_->close(); }

  [[nodiscard]] bool serves() const noexcept { return store_->serves(); }
  [[nodiscard]] std::string local_address() const { return store_->local_address(); }
  [[nodiscard]] std::string describe() const { return store_->describe(); }
  void admit_no_more() const noexcept { store_->admit_no_more(); }

 private:
  template <class Request>
  auto ask(const Request& request) const;

  const std::shared_ptr<store> store_;
  std::atomic<bool> given_up_{false};
  mutable std::mutex mutex_;  // guards the next one
  std::string reason_;
};

}  // namespace ferry::inline v0::detail
