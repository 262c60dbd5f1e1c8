#pragma once

// The key-value store through which workers find each other: names, addresses, barriers.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/base/time.hpp>

namespace ferry::inline v0 {

namespace detail {
class bounded_store;
}

/// A key and its value, as store::list returns them.
struct store_entry {
  std::string key;
  std::string value;
  friend bool operator==(const store_entry&, const store_entry&) = default;
};

/// The state of one key at one moment. Every write gives the key a version that no write of the store had before; an
/// absent key has version 0.
struct store_change {
  /// No key ever has this version: store::wait_change with it returns the present state at once.
  static constexpr std::uint64_t unknown = ~std::uint64_t{0};

  std::uint64_t version = 0;
  std::optional<std::string> value;  ///< empty: the key is absent
};

/// A key-value store shared by the workers of a group. Keys are 1 to max_key_bytes bytes, values any bytes.
///
/// Thread-safe, except for destruction. Every request ends within its `limit`; one that is not set means the default
/// timeout. Errors of every function: errc::store_timeout (the text
/// names the keys that are missing), errc::store_failed (closed, or the store refused), errc::store_unreachable,
/// errc::limit_exceeded (key or value too long), errc::invalid_argument (empty key).
///
/// To write a store, derive and define the do_ functions; they get checked keys and a deadline.
class store {
 public:
  static constexpr std::size_t max_key_bytes = 4096;
  static constexpr std::size_t default_max_value_bytes = std::size_t{16} << 20U;

  virtual ~store() = default;
  store(const store&) = delete;
  store& operator=(const store&) = delete;

  /// Writes `value` under `key`, replacing what was there.
  void set(std::string_view key, std::string_view value, timeout limit = {});

  /// The value of `key`; blocks until the key exists.
  [[nodiscard]] std::string get(std::string_view key, timeout limit = {});

  /// The values of `keys`, in their order; blocks until all exist. One round trip, however many they are.
  [[nodiscard]] std::vector<std::string> get(std::span<const std::string> keys, timeout limit = {});

  /// The value of `key`, or nothing if it does not exist.
  [[nodiscard]] std::optional<std::string> try_get(std::string_view key, timeout limit = {});

  /// Blocks until all of `keys` exist.
  void wait(std::span<const std::string> keys, timeout limit = {});
  /// Blocks until `key` exists.
  void wait(std::string_view key, timeout limit = {});

  /// Adds `delta` to the integer that `key` holds as decimal text (absent: 0) and returns the sum. Atomic.
  /// errc::invalid_argument if the key holds something else, or if the sum does not fit.
  std::int64_t add(std::string_view key, std::int64_t delta, timeout limit = {});

  /// Writes `desired` if the key holds `expected`, and returns what the key holds afterwards (empty if it is absent).
  /// An empty `expected` means absent or holding an empty value. Atomic.
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          timeout limit = {});

  /// Removes `key`; false if it did not exist.
  bool erase(std::string_view key, timeout limit = {});

  /// The entries whose keys start with `prefix`, sorted by key. Not a snapshot: entries written while it runs may or
  /// may not be among them.
  [[nodiscard]] std::vector<store_entry> list(std::string_view prefix = {}, timeout limit = {});

  /// How many keys start with `prefix`.
  [[nodiscard]] std::size_t count(std::string_view prefix = {}, timeout limit = {});

  /// Watches a key: blocks until its version is not `last_version`, and returns its state. Changes between two calls
  /// are folded into one, so a caller that passes the version it saw last misses no final state; a key that was removed
  /// and is absent again counts as unchanged.
  ///
  ///     for (store_change seen{store_change::unknown};; ) {
  ///       seen = s.wait_change("generation", seen.version);
  ///       ...
  ///     }
  store_change wait_change(std::string_view key, std::uint64_t last_version, timeout limit = {});

  /// Fails every wait in progress and every later call with errc::store_failed. Idempotent; may be called from any
  /// thread.
  virtual void close() noexcept = 0;

  /// Blocks while other processes still need this one for the store: in the process that serves a tcp store, until
  /// every other client has disconnected. False at the deadline. Other stores return true at once.
  virtual bool drain(timeout limit = {});

  /// In the process that serves a tcp store: refuses clients that are not connected yet from now on, as if the server
  /// had stopped. Other stores, and servers with another owner, are not affected.
  virtual void admit_no_more() noexcept {}

  /// Whether this process serves the store to others, so that the store ends with it.
  [[nodiscard]] virtual bool serves() const noexcept { return false; }

  /// The IP address, as text, under which other workers can reach this process, as learnt from the connection to the
  /// store; empty if the store has no network.
  [[nodiscard]] virtual std::string local_address() const { return {}; }

  /// What the store is, for messages: "tcp store 10.0.0.1:29500".
  [[nodiscard]] virtual std::string describe() const = 0;

  /// Time limit of a call without its own; five minutes unless set.
  [[nodiscard]] timeout default_timeout() const noexcept { return default_timeout_.load(std::memory_order_relaxed); }
  /// errc::invalid_argument if `value` is not set.
  void set_default_timeout(timeout value);

  /// The longest value that the store accepts.
  [[nodiscard]] std::size_t max_value_bytes() const noexcept {
    return max_value_bytes_.load(std::memory_order_relaxed);
  }

 protected:
  explicit store(std::size_t max_value_bytes = default_max_value_bytes) noexcept : max_value_bytes_(max_value_bytes) {}

  virtual void do_set(std::string_view key, std::string_view value, deadline until) = 0;
  /// Waits for all keys; returns their values if `values`, else nothing. `keys` may be empty.
  virtual std::vector<std::string> do_get(std::span<const std::string> keys, bool values, deadline until) = 0;
  virtual std::optional<std::string> do_try_get(std::string_view key, deadline until) = 0;
  virtual std::int64_t do_add(std::string_view key, std::int64_t delta, deadline until) = 0;
  virtual std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                     deadline until) = 0;
  virtual bool do_erase(std::string_view key, deadline until) = 0;
  virtual std::vector<store_entry> do_list(std::string_view prefix, deadline until) = 0;
  virtual std::size_t do_count(std::string_view prefix, deadline until) = 0;
  virtual store_change do_wait_change(std::string_view key, std::uint64_t last_version, deadline until) = 0;

  void set_max_value_bytes(std::size_t bytes) noexcept { max_value_bytes_.store(bytes, std::memory_order_relaxed); }

 private:
  friend class prefix_store;  // forwards to the do_ functions, deadline included
  friend class detail::bounded_store;
  [[nodiscard]] deadline until(timeout limit) const noexcept;
  void check_key(std::string_view key) const;
  std::vector<std::string> checked_get(std::span<const std::string> keys, deadline until);
  void check_value(std::string_view key, std::string_view value) const;

  std::atomic<std::size_t> max_value_bytes_;
  std::atomic<timeout> default_timeout_{timeout(std::chrono::minutes(5))};
};

namespace detail {
/// For stores: throws errc::store_timeout, "waited 5.000 s for key 'a' and 2 more in hash store".
[[noreturn]] void throw_keys_missing(const store& where, std::span<const std::string> missing, std::size_t how_many,
                                     clock::time_point since);
/// For stores: throws errc::store_timeout, "waited 5.000 s for a change of key 'a' in hash store".
[[noreturn]] void throw_no_change(const store& where, std::string_view key, clock::time_point since);
/// For stores: throws errc::store_failed, "the hash store was closed".
[[noreturn]] void throw_store_closed(const store& where);
/// "5.000 s"
std::string seconds_since(clock::time_point since);
}  // namespace detail

}  // namespace ferry::inline v0
