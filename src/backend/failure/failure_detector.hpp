#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include <ferry/base/error.hpp>
#include <ferry/base/time.hpp>

#include "../links/control.hpp"
#include "../links/endpoints.hpp"
#include "../links/link_table.hpp"
#include "../links/peers.hpp"
#include "../own_worker.hpp"
#include "group_records.hpp"
#include "heartbeat_clock.hpp"
#include "ticking_peers.hpp"

namespace ferry::inline v0::detail {

/// Detects which other workers are dead, and carries out the consequences; knows when this one was declared dead.
/// Thread-safe. Call without the mutex of a peer, a link or the store access.
class failure_detector {
 public:
  /// `owner`: of the control connections that this opens; kept alive by own.keep_alive().
  failure_detector(own_worker& own, peer_table& peers, link_table& links, const endpoints& ends, link_owner& owner);
  failure_detector(const failure_detector&) = delete;
  failure_detector& operator=(const failure_detector&) = delete;
  /// Before the worker listens.
  void set_group(group_records& of) noexcept { group_ = &of; }
  /// There are no more ticks.
  void stop() noexcept { beats_.stop(); }

  // What links report (link_owner).
  void on_link_open(const remote_worker& from, const connection& opened, bool by_us) noexcept;
  void on_link_lost(const remote_worker& from, const connection& lost) noexcept;
  void on_control(const remote_worker& from, inbound_message&& message) noexcept;
  void on_control_closed(control_link& which) noexcept;
  void on_cancel(const remote_worker& to, std::uint64_t call_id) noexcept;
  /// A control connection that has opened.
  void add_control(peer& to, std::shared_ptr<connection> opened, incarnation_id incarnation, bool by_us);
  /// Handles the result of an attempt to connect to `whom`; calls `then`, which must not throw, when it is known whether that one has
  /// ended: here, or once a log has been read for it.
  void on_connect_outcome(peer& whom, incarnation_id incarnation, const connect_outcome& outcome,
                          const std::function<void()>& then) noexcept;

  // What depends on a worker.
  /// A local operation waits for this worker without calling it: watch it from now on.
  void await(peer& whom) noexcept;
  /// Calls to it are repeated until it answers.
  void seek(const call_target& whom) noexcept;
  /// Ensures that a tick is scheduled, and looks at this peer, in which something has changed.
  void keep_ticking(peer& whom) noexcept {
    ticking_.add(whom);
    keep_ticking(clock::now() + own_.options.heartbeat_interval.duration());
  }

  // What is known of the ends of workers.
  enum class evidence : std::uint8_t { gone, silence, notice, record };
  void lose(peer& whom, incarnation_id incarnation, const std::string& reason, evidence from) noexcept;
  /// The same; throws std::bad_alloc before anything has changed.
  void declare_lost(peer& whom, incarnation_id incarnation, const std::string& reason, evidence from);
  enum class departure : std::uint8_t {
    unlogged,  ///< it has ended, and the log does not say so yet
    in_log,    ///< it has ended, and the log says so
    begun,     ///< the log says that it leaves; it still ends its calls
  };
  void depart(peer& whom, incarnation_id incarnation, std::string reason, departure how = departure::unlogged) noexcept;
  /// The same; throws std::bad_alloc before anything has changed.
  void record_departure(peer& whom, incarnation_id incarnation, std::string reason, departure how);
  /// Tells every worker that a connection leads to, or is about to.
  void spread(const fence_notice& notice) noexcept;
  /// This worker was declared dead.
  void become_fenced(const std::string& reason) noexcept;
  /// The same; throws std::bad_alloc before anything has changed.
  void accept_fence(const std::string& reason);

  /// Why that incarnation of it is lost, or that it has left or was replaced, if so.
  [[nodiscard]] std::optional<std::string> end_of(const peer& whom, incarnation_id incarnation) const;
  [[nodiscard]] std::uint64_t lost_workers() const noexcept { return lost_workers_.load(); }
  /// How long `of` has been silent, if this worker would notice.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> silence(worker_id of) const noexcept;

 private:
  void keep_ticking(clock::time_point at) noexcept;
  void tick(const heartbeat_clock::tick& due) noexcept;
  bool check_peer(peer& whom, const heartbeat_clock::tick& due, const lease_rules& rules, clock::time_point& next,
                  bool& kept);
  void open_control(peer& to) noexcept;
  void cancel_served(const remote_worker& from, std::uint64_t call_id) noexcept;
  void on_nothing_there(peer& whom, incarnation_id incarnation, const connect_outcome& outcome,
                        const std::function<void()>& then) noexcept;
  void after_reading_log(const std::function<void()>& next) noexcept;
  void end_links(const peer* whom, incarnation_id incarnation, errc code, const std::exception_ptr& why) noexcept;
  [[nodiscard]] std::shared_ptr<link_owner> kept_owner() const { return {own_.keep_alive(), &owner_}; }

  own_worker& own_;
  peer_table& peers_;
  link_table& links_;
  const endpoints& ends_;
  link_owner& owner_;
  group_records* group_ = nullptr;
  ticking_peers ticking_;
  heartbeat_clock beats_;
  std::atomic<std::uint64_t> lost_workers_{0};
};

}  // namespace ferry::inline v0::detail
