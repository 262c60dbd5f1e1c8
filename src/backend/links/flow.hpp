#pragma once

// Bounds on the calls of a worker: how much is under way, and what waits for its turn.

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <vector>

#include <ferry/backend/flow_limits.hpp>
#include <ferry/backend/worker_info.hpp>
#include <ferry/transport/connection.hpp>
#include <ferry/wire/message.hpp>

#include "../lock_ranks.hpp"

namespace ferry::inline v0::detail {

/// The sum of what several connections have accepted and not yet written. Thread-safe.
class unwritten_sum {
 public:
  /// Counts until remove(); the connection must live until then.
  void add(const connection& which);
  void remove(const connection& which) noexcept;
  [[nodiscard]] std::uint64_t bytes() const noexcept;

 private:
  mutable ranked_mutex mutex_{rank_of_unwritten};
  std::vector<const connection*> all_;
};

/// What is being served to all callers. Each link updates it in steps, so a single request costs nothing here.
/// Thread-safe.
struct load_sum {
  static constexpr std::uint64_t calls_step = flow_limits::fair_calls / 2;
  static constexpr std::uint64_t bytes_step = flow_limits::fair_bytes / 2;
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> bytes{0};
};

/// State shared by all links of a worker. Thread-safe.
struct worker_flow {
  explicit worker_flow(const flow_limits& bounds = {}) : limits(bounds) {}

  const flow_limits limits;
  std::atomic<std::uint64_t> active_calls{0};  // begun and not completed, those in queues included
  std::atomic<std::uint64_t> queued_calls{0};  // those that want a reply
  std::atomic<std::uint64_t> queued_messages{0};
  std::atomic<std::uint64_t> queued_bytes{0};
  unwritten_sum requests;

  load_sum served;
  unwritten_sum replies;
  std::atomic<std::uint64_t> paused_links{0};
  std::atomic<std::uint64_t> held_handlers{0};

  /// Calls that were sent and have not ended.
  [[nodiscard]] std::uint64_t sent_calls() const noexcept {
    const std::uint64_t queued = queued_calls.load(std::memory_order_relaxed);
    const std::uint64_t active = active_calls.load(std::memory_order_relaxed);
    return active > queued ? active - queued : 0;
  }
};

/// Requests that a worker has sent and handled, on links that are open: one that closes subtracts its own, at both ends,
/// for what was under way on it will never be handled.
struct request_totals {
  std::atomic<std::uint64_t> sent{0};
  std::atomic<std::uint64_t> handled{0};
};

/// Messages to one peer that wait for their turn, in FIFO order. Not thread-safe; keeps the worker's counters up to
/// date.
class send_queue {
 public:
  struct entry {
    outgoing_message message;
    std::uint64_t bytes = 0;
    bool soon = false;  // it may be delayed briefly to be written together with others

    [[nodiscard]] bool one_way() const noexcept { return (message.header.flags & frame_one_way) != 0; }
  };
  using entries = std::list<entry>;

  explicit send_queue(worker_flow& flow) : flow_(flow) {}
  ~send_queue();
  send_queue(const send_queue&) = delete;
  send_queue& operator=(const send_queue&) = delete;

  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] entry& front() noexcept { return entries_.front(); }
  /// Throws errc::resource_exhausted, naming `peer` and the bound, if no further message of this many bytes may wait.
  /// While a thread is sending queued messages (`pumping`), those that can be sent now do not count.
  void check_room(std::uint64_t bytes, const worker_info& peer, std::uint64_t sent_calls, bool pumping) const;
  /// Throws std::bad_alloc; then `message` is untouched.
  entries::iterator push(outgoing_message&& message, bool soon);
  /// Removes one, or all. Destroy the result without a lock: tensors may run user deleters.
  entries take(entries::iterator which) noexcept;
  entries take_front() noexcept { return take(entries_.begin()); }
  entries take_all() noexcept;

 private:
  void count(const entry& which, bool in) noexcept;

  worker_flow& flow_;
  entries entries_;
  std::uint64_t bytes_ = 0;
};

}  // namespace ferry::inline v0::detail
