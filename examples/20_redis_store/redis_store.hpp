#pragma once

// A store of one's own: the workers of a group meet at a Redis server, through its C client hiredis.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/base/time.hpp>
#include <ferry/store/store.hpp>
#include <ferry/store/store_traits.hpp>

struct redisContext;
struct redisReply;

struct redis_options {
  std::string host;  ///< of the server
  int port = 6379;
  std::string socket;    ///< the path of its socket, in place of host and port
  std::string password;  ///< empty: none
  std::string group;     ///< groups with other names do not see each other's keys
};

/// The keys of a group are two hashes of the server, of values and of their versions, and a counter. What belongs together is written
/// by a script, which the server runs alone. A waiting thread subscribes to a channel for each key, over a connection of its own.
class redis_store final : public ferry::store {
 public:
  /// Connects. Throws errc::store_unreachable.
  redis_store(redis_options options, ferry::deadline until);
  ~redis_store() override;

  void close() noexcept override;
  [[nodiscard]] std::string local_address() const override { return local_address_; }
  [[nodiscard]] std::string describe() const override;

 protected:
  void do_set(std::string_view key, std::string_view value, ferry::deadline until) override;
  std::vector<std::string> do_get(std::span<const std::string> keys, bool values, ferry::deadline until) override;
  std::optional<std::string> do_try_get(std::string_view key, ferry::deadline until) override;
  std::int64_t do_add(std::string_view key, std::int64_t delta, ferry::deadline until) override;
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             ferry::deadline until) override;
  bool do_erase(std::string_view key, ferry::deadline until) override;
  std::vector<ferry::store_entry> do_list(std::string_view prefix, ferry::deadline until) override;
  std::size_t do_count(std::string_view prefix, ferry::deadline until) override;
  ferry::store_change do_wait_change(std::string_view key, std::uint64_t last_version, ferry::deadline until) override;

 private:
  struct free_context {
    void operator()(redisContext* which) const noexcept;
  };
  struct free_reply {
    void operator()(redisReply* which) const noexcept;
  };
  using connection = std::unique_ptr<redisContext, free_context>;
  using reply = std::unique_ptr<redisReply, free_reply>;

  [[nodiscard]] connection connect(ferry::deadline until) const;
  void append(redisContext& to, std::span<const std::string_view> words) const;
  [[nodiscard]] reply next_reply(redisContext& from) const;
  bool step(redisContext& over, ferry::deadline until) const;
  reply ask(connection& over, std::span<const std::string_view> words, ferry::deadline until) const;
  reply run(std::span<const std::string_view> words, ferry::deadline until);
  reply run_script(std::string_view text, std::vector<std::string_view> arguments, ferry::deadline until);
  template <class Each>
  void scan(const std::string& hash, std::string_view prefix, ferry::deadline until, Each each);
  template <class Look>
  bool wait_until(std::span<const std::string> keys, ferry::deadline until, Look look);
  [[nodiscard]] ferry::store_change state_of(std::string_view key, ferry::deadline until);
  [[noreturn]] void throw_lost(const redisContext& over) const;

  const redis_options options_;
  const std::string values_;    // key -> value
  const std::string versions_;  // key -> version
  const std::string revision_;  // the last version
  const int closed_event_;      // readable once the store is closed
  std::string local_address_;   // not changed after construction
  std::atomic<bool> closed_ = false;
  std::mutex mutex_;
  std::condition_variable free_;
  bool busy_ = false;      // a thread has the connection
  connection connection_;  // empty after an error, until the next request
};

/// redis://host:port?group=name, or redis:///path/of/its/socket?group=name, each optionally with rank and world_size, which else
/// come from the launcher. The password is that of redis-cli: REDISCLI_AUTH.
struct redis_scheme {};

template <>
struct ferry::store_traits<redis_scheme> {
  static constexpr std::string_view scheme = "redis";
  static void resolve(rendezvous_request& request);
  static std::shared_ptr<store> open(const rendezvous_request& request);
};
