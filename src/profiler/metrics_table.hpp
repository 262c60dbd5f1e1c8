#pragma once

// What a worker counts of its calls. Each thread counts for itself, with plain loads and stores; a reader adds up what the threads
// have. Threads meet only where a method or peer is new to one of them.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ferry/profiler/metrics.hpp>
#include <ferry/rpc/attached.hpp>

#include "../rpc/pipeline/call_observers.hpp"

namespace ferry::inline v0::detail {

/// Written by one thread at a time, read by any.
class thread_count {
 public:
  void add(std::uint64_t more) noexcept { value_.store(get() + more, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }
  /// A reader that has got what this has added also gets what the thread has counted before.
  void publish(std::uint64_t more) noexcept { value_.store(get() + more, std::memory_order_release); }
  [[nodiscard]] std::uint64_t get_published() const noexcept { return value_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

/// A latency_histogram of one thread.
class thread_histogram {
 public:
  void add(std::int64_t ns) noexcept;
  void add_to(profiler::latency_histogram& sum) const;

 private:
  thread_count sum_ns_;
  std::array<thread_count, profiler::latency_histogram::buckets> counts_;
};

/// The errors of a series, by code; rare, so that all threads share them.
class error_counts {
 public:
  void add(errc code) noexcept;
  [[nodiscard]] std::vector<std::pair<errc, std::uint64_t>> all() const;

 private:
  static constexpr std::size_t most_codes = 80;
  std::array<std::atomic<std::uint64_t>, most_codes> of_code_{};
};

struct metrics_series;

/// What one thread has counted of one series. All that every call changes, but for a bucket, is in the first cache line.
struct alignas(64) thread_series {
  explicit thread_series(metrics_series& which) noexcept : of(which) {}
  thread_count calls, one_way, not_sent, ended, sent_bytes, received_bytes;
  thread_count at_once;  // requests whose handlers began when they arrived
  thread_histogram duration;
  std::unique_ptr<thread_histogram> queued;  // of the other requests
  metrics_series& of;
};

/// A method and a peer, as caller or as callee.
struct metrics_series {
  metrics_series(std::size_t n, profiler::call_side s, std::string m, std::string p)
      : number(n), side(s), method(std::move(m)), peer(std::move(p)) {}
  const std::size_t number;
  const profiler::call_side side;
  const std::string method;
  const std::string peer;
  error_counts errors;
  std::atomic<std::uint64_t> late_replies{0};  // rare, so that all threads share it
};

/// The metrics of one worker, from the first time on that they are switched on until the worker is destroyed. They are switched on
/// and off, never reset: who switches them on subtracts what they are then.
class metrics_table final : public call_observer, public std::enable_shared_from_this<metrics_table> {
 public:
  metrics_table() noexcept;
  ~metrics_table();
  metrics_table(const metrics_table&) = delete;
  metrics_table& operator=(const metrics_table&) = delete;

  [[nodiscard]] call_moments moments() const noexcept override { return call_observers::of_switched; }
  void on_call(const worker_core& worker, const call_event& event) noexcept override;
  void on_connection(const link_event& event) noexcept override;

  struct totals {
    std::vector<profiler::call_metrics> series;       // by number; without `in_flight`
    std::vector<profiler::peer_metrics> connections;  // by name
    std::uint64_t folded = 0;
    std::uint64_t lost = 0;
  };
  /// Counts calls that are made, and requests that arrive, from now on; `before` is what was counted until then. `max_series` is for
  /// those that are new. Throws errc::invalid_argument if it is on already.
  void switch_on(worker_core& of, std::size_t max_series, totals& before);
  void switch_off(worker_core* of) noexcept;
  /// Ids of workers may mean others than before.
  void forget_peers() noexcept;

  [[nodiscard]] totals read() const;

 private:
  // A series as events name it: ids of methods are hashes, and so few peers are there that their ids spread well.
  struct series_id {
    std::uint64_t method = 0;
    std::uint64_t peer_and_side = 0;
    series_id() = default;
    series_id(const call_event& event, profiler::call_side side) noexcept
        : method(event.entry ? event.method : 0),
          peer_and_side(static_cast<std::uint64_t>(static_cast<std::uint32_t>(event.peer.value)) << 1U |
                        static_cast<std::uint64_t>(side)) {}
    /// Its lowest bits.
    [[nodiscard]] std::size_t quick_hash() const noexcept { return method + peer_and_side * 3; }
    [[nodiscard]] std::size_t hash() const noexcept { return (method + peer_and_side * 0x9e3779b97f4a7c15U) >> 8U; }
    friend bool operator==(const series_id&, const series_id&) = default;
  };
  // What a thread has of this table. Threads that end leave theirs to others.
  struct shard {
    struct entry {
      series_id id;
      thread_series* counts = nullptr;  // null: a free place
    };
    // Of the thread.
    std::vector<entry> known;  // open addressing; a power of two
    std::size_t known_count = 0;
    std::uint64_t stamp = 0;  // of the table, when these were known
    // By number; guarded by the table's mutex.
    std::vector<std::unique_ptr<thread_series>> series;
  };
  class shards_of_thread;
  struct thread_state;
  using series_name = std::tuple<profiler::call_side, std::string, std::string>;

  [[nodiscard]] bool counts(clock::time_point began) const noexcept {
    return began.time_since_epoch().count() >= since_.load(std::memory_order_relaxed);
  }
  // Null: there was no memory.
  [[nodiscard]] thread_series* find(thread_state& here, const call_event& event, profiler::call_side side) noexcept;
  [[nodiscard]] thread_series* look_up(thread_state& here, const call_event& event, profiler::call_side side) noexcept;
  [[nodiscard]] thread_series* make(shard& mine, const call_event& event, profiler::call_side side);
  [[nodiscard]] metrics_series& series_of(profiler::call_side side, std::string method, std::string peer);
  [[nodiscard]] shard* shard_of(thread_state& here) noexcept;
  [[nodiscard]] shard* take_shard();
  void give_back(shard& which) noexcept;
  void count_late_reply(const link_event& event);
  static void remember(shard& mine, const shard::entry& what);
  void begin_call(thread_state& here, const call_event& event) noexcept;
  void end_call(thread_state& here, const call_event& event) noexcept;
  void count_not_sent(thread_state& here, const call_event& event) noexcept;
  void begin_request(thread_state& here, const call_event& event) noexcept;
  void end_request(thread_state& here, const call_event& event) noexcept;

  const std::uint64_t serial_;
  std::atomic<std::int64_t> since_;   // ns of the steady clock; calls made before are not counted
  std::atomic<std::uint64_t> stamp_;  // no other table has it, nor this one after forget_peers()
  std::atomic<std::uint64_t> lost_{0};
  std::mutex switch_mutex_;  // guards the next one; taken before the other
  bool on_ = false;
  mutable std::mutex mutex_;  // guards the rest
  std::size_t max_series_ = 0;
  std::vector<std::unique_ptr<metrics_series>> series_;
  std::map<series_name, metrics_series*> by_name_;
  std::size_t others_ = 0;                  // of these, the ones that stand for all others
  std::unordered_set<std::size_t> folded_;  // hashes of names
  std::map<std::string, profiler::peer_metrics, std::less<>> connections_;  // by peer
  std::vector<std::unique_ptr<shard>> shards_;
  std::vector<shard*> free_shards_;
};

/// Finds the table of a worker.
class metrics_client final : public worker_attachment {
 public:
  /// Of that worker; made on first use.
  [[nodiscard]] static std::shared_ptr<metrics_table> table_of(worker_core& worker);
  void on_member_event(const member_event& event) noexcept override;

 private:
  std::mutex mutex_;
  std::shared_ptr<metrics_table> table_;
};

}  // namespace ferry::inline v0::detail
