#pragma once

// Access of a worker to the store of its group that cannot block the worker if the store hangs. Requests run on threads
// that may block; each ends by itself within seconds. A caller that needs the result waits up to its own deadline, and
// marks its thread as blocked for the handler pool. One thread reads the log for all callers, and one performs the
// pending writes.

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include <ferry/base/time.hpp>
#include <ferry/transport/reactor.hpp>

#include "../../store/bounded_store.hpp"
#include "../lock_ranks.hpp"

namespace ferry::inline v0::detail {

/// The worker that accesses the store. Functions are called without a lock, except closing() and ended().
class store_user {
 public:
  /// Kept by requests under way.
  [[nodiscard]] virtual std::shared_ptr<void> keep_alive() = 0;
  [[nodiscard]] virtual bool closing() const noexcept = 0;
  /// It closes, or takes no further part in the group: waits end, and nothing more is written.
  [[nodiscard]] virtual bool ended() const noexcept = 0;
  /// Reads the group's log; false: it could not be read.
  [[nodiscard]] virtual bool catch_up() noexcept = 0;
  /// For log messages.
  [[nodiscard]] virtual std::string name() const = 0;

 protected:
  ~store_user() = default;
};

/// Thread-safe.
class store_access {
 public:
  store_access(store_user& user, std::shared_ptr<bounded_store> where, std::shared_ptr<reactor> threads)
      : user_(user), threads_(std::move(threads)), store_(std::move(where)) {}
  store_access(const store_access&) = delete;
  store_access& operator=(const store_access&) = delete;

  /// Null once it was released.
  [[nodiscard]] std::shared_ptr<bounded_store> store() const;
  void replace_store(std::shared_ptr<bounded_store> by) noexcept;
  /// Futures that are kept keep the worker's parts alive, but must not keep the store's resources open.
  void release_store() noexcept { replace_store(nullptr); }

  /// Begins to read the log, unless a read has begun since the last request. Returns the number of the request.
  std::uint64_t request_read() noexcept;
  /// Reads the log, until `enough` is true if it is given; that is called with the mutex held. False: it could not be
  /// read before the deadline.
  [[nodiscard]] bool read_log(deadline until, const std::function<bool()>& enough = nullptr);
  /// The last request of a read that has succeeded.
  [[nodiscard]] std::uint64_t last_good_read() const noexcept;

  struct background_action;
  [[nodiscard]] std::shared_ptr<background_action> run_in_background(std::function<void()> action);
  /// Waits for an action, and rethrows what it throws. False: it was still running at the deadline, or when `unwanted`
  /// became true.
  bool await_background(background_action& action, deadline until, const std::function<bool()>& unwanted = nullptr);
  /// Both.
  bool run_in_time(std::function<void()> action, deadline until, const std::function<bool()>& unwanted = nullptr);
  /// Writes something in the background and retries until the store accepts it; `what` is for log messages.
  void write_later(std::function<void()> write, std::string what, bool urgent = false) noexcept;
  /// The same; throws std::bad_alloc if it cannot.
  void add_write(std::function<void()> write, std::string what, bool urgent = false);

  /// The members have changed, or the worker has ended: waits look again.
  void wake_waiting() noexcept;
  [[nodiscard]] std::uint64_t member_changes() const noexcept;
  /// Waits until member_changes() is not `seen` any more. False: it was at the deadline.
  bool await_change(std::uint64_t seen, deadline until);
  /// Waits for `pause`, or until the worker closes.
  void pause(std::chrono::nanoseconds pause);

 private:
  void read_for_all() noexcept;
  void write_pending() noexcept;

  store_user& user_;
  const std::shared_ptr<reactor> threads_;
  mutable ranked_mutex mutex_{rank_of_store_access};  // guards what follows
  ranked_condition changed_;
  std::shared_ptr<bounded_store> store_;
  std::uint64_t member_changes_ = 0;
  std::uint64_t reads_wanted_ = 0;  // of the log
  std::uint64_t reads_done_ = 0;
  std::uint64_t reads_good_ = 0;  // the last one that succeeded
  bool reading_ = false;
  struct pending_write {
    std::function<void()> write;
    std::string what;
  };
  std::deque<pending_write> to_write_;
  bool writing_ = false;
  bool write_added_ = false;
};

}  // namespace ferry::inline v0::detail
