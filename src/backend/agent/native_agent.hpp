#pragma once

// The agent of the native backend. The core is shared with its links; the agent is the handle that closes it.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ferry/backend/agent.hpp>
#include <ferry/backend/backend.hpp>

#include "../../store/bounded_store.hpp"
#include "../failure/fence.hpp"
#include "../failure/heartbeat_clock.hpp"
#include "../links/connect_attempt.hpp"
#include "../links/link_checks.hpp"
#include "../links/link_table.hpp"
#include "../links/links.hpp"
#include "../links/peers.hpp"
#include "../lock_ranks.hpp"
#include "../made_from_members.hpp"
#include "../membership/member_log.hpp"
#include "../membership/store_access.hpp"
#include "event_reports.hpp"
#include "quiescence.hpp"

namespace ferry::inline v0::detail {

/// Ties the rooms of the backend together: each has its own state and mutex, in the order of lock_ranks.hpp, and this
/// class has what they share (who this worker and its peers are) and what goes from one to another.
class native_core final : public link_owner,
                          public connection_acceptor,
                          private store_user,
                          public std::enable_shared_from_this<native_core> {
 public:
  native_core(std::shared_ptr<store> group_store, const worker_config& config, const rpc_options& options,
              const std::vector<transport_factory>& transports, device_counts counts);

  /// Agrees with the others, publishes this worker, starts listening; waits for all of a static group.
  void join();
  void leave_together(deadline until);
  void leave(deadline until);
  void stop_leaving(bool entirely) noexcept;
  void close() noexcept;

  [[nodiscard]] const worker_info& self() const noexcept { return self_; }
  [[nodiscard]] incarnation_id incarnation() const noexcept { return incarnation_; }
  [[nodiscard]] bool dynamic() const noexcept { return world_size_ == 0; }
  [[nodiscard]] std::vector<worker_info> workers() const;
  [[nodiscard]] worker_info find(std::string_view name) const;
  [[nodiscard]] worker_info find(worker_id id) const;
  /// A worker that was found, and its place, which lives as long as this object.
  struct found_worker : located_worker {
    peer* place;
  };
  [[nodiscard]] found_worker locate(std::string_view name, deadline until) const;
  [[nodiscard]] found_worker locate(worker_id id, deadline until) const;
  [[nodiscard]] found_worker locate(const call_target& whom, deadline until) const;
  [[nodiscard]] bool is_over(const call_target& whom, std::uint64_t& question) const;
  bool update_workers(deadline until) const;
  [[nodiscard]] worker_info wait_for(std::string_view name, deadline until) const;
  [[nodiscard]] std::string metadata(worker_id id) const;
  [[nodiscard]] std::vector<device> devices() const;
  [[nodiscard]] bool uses_devices() const noexcept {
    return maps_known_.load(std::memory_order_acquire) || !devices_->devices.empty();
  }
  [[nodiscard]] std::shared_ptr<const device_maps_between> maps_to(worker_id id) const;
  [[nodiscard]] route_info route(worker_id id) const;
  void place_tensors(const call_target& to, outgoing_message& message, bool response,
                     const device_map* placement) const;

  call_ticket call(const call_target& to, outgoing_message&& request, pending_call& call, deadline until, bool driven);
  void notify(const call_target& to, outgoing_message&& request);
  void finished_calls(std::uint64_t count) noexcept;
  void activity_changed() noexcept;
  void set_request_handler(request_handler* handler) noexcept {
    handler_.store(handler);
    events_.set(handler);
  }
  [[nodiscard]] const std::shared_ptr<ferry::reactor>& reactor() const noexcept { return reactor_; }
  [[nodiscard]] const rpc_options& options() const noexcept { return options_; }
  [[nodiscard]] agent_counters counters() const noexcept;
  [[nodiscard]] const link_table& links() const noexcept { return links_; }
  [[nodiscard]] std::optional<std::chrono::nanoseconds> silence(worker_id of) const noexcept;
  void seek(const call_target& whom) noexcept;

  // link_owner
  void on_link_closed(void* link) noexcept override;
  void count_late_reply() noexcept override { late_replies_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] bool closing() const noexcept override { return closing_.load(); }
  [[nodiscard]] worker_flow& flow() noexcept override { return flow_; }
  void check_deadlines_at(deadline at) noexcept override { checks_.check_deadlines_at(at); }
  void count_sent(std::int64_t change) noexcept override { sent_.fetch_add(static_cast<std::uint64_t>(change)); }
  void count_handled(std::int64_t change) noexcept override { handled_.fetch_add(static_cast<std::uint64_t>(change)); }
  [[nodiscard]] bool takes_tensors_on(device where) const noexcept override;
  void run_later(work* item) noexcept override { reactor_->post(item); }
  void look_again_soon() noexcept override { checks_.look_again_soon(); }
  void on_link_open(const remote_worker& peer, const connection& opened, bool by_us) noexcept override;
  void on_link_lost(const remote_worker& peer, const connection& lost) noexcept override;
  void on_control(const remote_worker& from, inbound_message&& message) noexcept override;
  void on_control_closed(control_link& which) noexcept override;
  void on_cancel(const remote_worker& peer, std::uint64_t call_id) noexcept override;
  void on_link_event(const link_event& event) noexcept override { events_.link(event); }

  // connection_acceptor
  hello_reply on_hello(const hello& from) override;
  void on_accepted(std::shared_ptr<connection> accepted, const hello& from) noexcept override;
  [[nodiscard]] bool expects(std::string_view host) noexcept override;

 private:
  // store_user; closing() is the one of link_owner.
  [[nodiscard]] std::shared_ptr<void> keep_alive() override { return shared_from_this(); }
  [[nodiscard]] bool ended() const noexcept override { return closing_.load() || fence_.is_up(); }
  [[nodiscard]] bool catch_up() noexcept override;
  [[nodiscard]] std::string name() const override { return to_string(self_); }

  /// The connection for urgent calls, or the ordinary one. A leaving worker is no longer a member, but may be reached.
  std::shared_ptr<outgoing_link> link_to(const call_target& to, bool urgent, bool reaches_leaving);
  void start_connecting(const std::shared_ptr<outgoing_link>& link, const worker_record& to, std::uint64_t features);
  [[nodiscard]] std::shared_ptr<connect_attempt> attempt_to_reach(const worker_record& to, std::uint64_t features,
                                                                  std::chrono::nanoseconds limit_each,
                                                                  std::function<bool()> wanted,
                                                                  std::function<void(connect_outcome)> done);

  // Start and end of workers (failure.cpp).
  /// Whether its statements about others count. In a dynamic group its own entry must be in the log first, and it must
  /// have read it.
  [[nodiscard]] bool is_member() const noexcept { return !log_ || joined_.load() != 0; }
  /// Whether others may have a record of it: also while its entry is being written.
  [[nodiscard]] bool is_announced() const noexcept { return !log_ || announced_.load() != 0; }
  /// Ensures that a tick is scheduled, at `at` if there is none yet.
  void keep_ticking(clock::time_point at) noexcept;
  void keep_ticking() noexcept { keep_ticking(clock::now() + options_.heartbeat_interval.duration()); }
  void tick(const heartbeat_clock::tick& due) noexcept;
  bool check_peer(peer& whom, const heartbeat_clock::tick& due, const lease_rules& rules, clock::time_point& next);
  void open_control(peer& to) noexcept;
  void cancel_served(const remote_worker& from, std::uint64_t call_id) noexcept;
  void add_control(peer& to, std::shared_ptr<connection> opened, incarnation_id incarnation, bool by_us);
  /// A local operation waits for this worker without calling it: watch it from now on.
  void await(peer& whom) noexcept;
  /// Why that incarnation of it is lost, if it is.
  [[nodiscard]] std::optional<std::string> end_of(const peer& whom, incarnation_id incarnation) const;
  /// Handles the result of an attempt to connect to it.
  void on_connect_outcome(peer& whom, incarnation_id incarnation, const connect_outcome& outcome) noexcept;
  enum class evidence : std::uint8_t { gone, silence, notice, record };
  void lose(peer& whom, incarnation_id incarnation, const std::string& reason, evidence from) noexcept;
  /// The same; throws std::bad_alloc before anything has changed.
  void declare_lost(peer& whom, incarnation_id incarnation, const std::string& reason, evidence from);
  void end_links(const peer* whom, incarnation_id incarnation, errc code, const std::exception_ptr& why) noexcept;
  void spread(const fence_notice& notice) noexcept;
  enum class departure : std::uint8_t {
    unlogged,  ///< it has ended, and the log does not say so yet
    in_log,    ///< it has ended, and the log says so
    begun,     ///< the log says that it leaves; it still ends its calls
  };
  void depart(peer& whom, incarnation_id incarnation, std::string reason, departure how = departure::unlogged) noexcept;
  /// The same; throws std::bad_alloc before anything has changed.
  void record_departure(peer& whom, incarnation_id incarnation, std::string reason, departure how);
  void report_end(worker_id id, incarnation_id incarnation) noexcept { events_.member_end(id, incarnation); }
  void settle_loose_ends(deadline until);
  void become_fenced(const std::string& reason) noexcept;
  /// The same; throws std::bad_alloc before anything has changed.
  void accept_fence(const std::string& reason);
  void publish_fence(const fence_notice& notice, bool contested) noexcept;
  void write_fence(const fence_notice& notice, bool contested);
  void look_for_own_fence() noexcept;
  /// Gives up the store unless it answers: the worker whose process serves it is lost.
  void check_store_without(const std::string& host, const std::string& reason) noexcept;
  void report(const member_event& event) noexcept { events_.member(event); }
  [[nodiscard]] std::shared_ptr<bounded_store> group_store() const { return access_.store(); }
  [[nodiscard]] bool is_gone(int rank) const;
  [[nodiscard]] int gone_count() const;

  static constexpr std::chrono::seconds store_limit{5};  // for a member's requests to the store
  /// For a request that says what was missing at a deadline that may have passed.
  [[nodiscard]] static deadline last_look(deadline until) noexcept {
    return std::max(until, deadline::after(std::chrono::milliseconds(250)));
  }
  template <class Find>
  [[nodiscard]] peer* look_up(deadline until, const Find& find, bool& read) const;
  void check_hello(const hello& from) const;
  /// Throws errc::resource_exhausted if it has as many connections of the kind as it may have.
  static void check_connections(const peer& of, const hello& from);

  // Static groups (static_group.cpp).
  void form_static(deadline until);
  void choose_attempt(deadline until);
  void leave_static(deadline until);
  void agree_on_group(deadline until);
  void agree_on_names(deadline until);
  [[nodiscard]] std::vector<std::string> all_ranks(std::string_view prefix) const;
  [[nodiscard]] std::vector<std::string> get_all(const std::vector<std::string>& keys, std::string_view prefix,
                                                 deadline until);
  void publish_peers(const std::vector<std::string>& records, deadline until);
  void wait_for_ready(deadline until);
  void check_for_failed_start(deadline until);
  [[nodiscard]] std::string sum_of_round(int round, deadline until);
  /// A request to the store as a part of leave_together(), which a shutdown that is not graceful interrupts.
  template <class Request>
  [[nodiscard]] auto ask_while_leaving(deadline until, Request request);
  void watch_store_host() noexcept;
  [[noreturn]] void throw_silent_store(std::string_view why) const;
  /// The sums of what the members wrote under `prefix`; without those that have terminated and wrote nothing.
  [[nodiscard]] std::string add_up_round(const std::string& prefix, deadline until);

  // Dynamic groups (dynamic_group.cpp).
  void form_dynamic(deadline until);
  void leave_dynamic(deadline until, leave_interrupt level);
  /// Throws errc::duplicate_name or duplicate_id if a live member has this worker's name or id; records a dead one as
  /// lost.
  void make_room(deadline until);
  void choose_id();
  [[noreturn]] void throw_still_leaving(const worker_record& holder, bool by_name) const;
  [[nodiscard]] connect_outcome probe(const worker_record& holder, deadline until);
  void take(const membership_change& change);
  void follow() noexcept;
  /// Every member of a dynamic group is watched by one other, so that every death is noticed.
  void watch_next() noexcept;
  void lose_unless_left(peer& whom, incarnation_id incarnation, const std::string& reason) noexcept;
  void record_loss(const fence_notice& notice, bool contested);
  /// Handles entries of the log about this worker itself, and about others.
  void take_own(const membership_change& change);
  void answer_suspicion();
  void take_others(const membership_change& change);
  /// Asks in the log whether a member lives that this worker has never reached; reads its answer.
  void ask_log(peer& whom, incarnation_id incarnation) noexcept;
  void read_answer(peer& whom, incarnation_id incarnation) noexcept;
  void log_own_leave(deadline until, leave_interrupt level);
  void log_own_end() noexcept;
  void stop_following() noexcept;
  void wake_waiting() noexcept { access_.wake_waiting(); }
  void write_gone(incarnation_id incarnation);

  void log_route(const worker_info& to) const noexcept;

  // Devices (placement.cpp).
  [[nodiscard]] worker_record own_record() const;
  [[nodiscard]] worker_devices own_devices() const noexcept { return {self_.name(), devices_.get()}; }
  /// Adds a member to the table of peers, with the maps between it and this worker.
  peer& admit(worker_record record);
  /// Throws errc::invalid_argument: the same in every worker.
  void check_devices_of(const std::vector<worker_record>& group) const;
  void check_devices_fit() const;

  void listen();
  void stop_listening() noexcept;
  void read_peers(deadline until);
  /// Throws errc::shutting_down once waits of this level are interrupted.
  void wait_until_quiet(deadline until, leave_interrupt level);
  void check_still_leaving(leave_interrupt level) const;
  [[nodiscard]] bool quiet() const noexcept;
  [[nodiscard]] hello greeting(const worker_info& target, std::uint64_t features) const;
  [[nodiscard]] std::string missing_workers(std::string_view prefix, deadline until) const;

  // What the rooms share: who this worker is.
  const rpc_options options_;
  const std::shared_ptr<ferry::reactor> reactor_;
  worker_info self_;
  const incarnation_id incarnation_ = incarnation_id::random();
  const std::uint64_t own_mark_ =
      incarnation_id::random().value;  // in the greetings to itself, which others cannot send
  const int world_size_;               // 0: dynamic
  const int wanted_id_;                // any_rank: the lowest free one
  const std::string metadata_;
  const std::string host_ = this_host();
  const timeout init_timeout_;
  std::string group_;
  std::atomic<bool> closing_{false};
  std::atomic<request_handler*> handler_{nullptr};
  event_reports events_;
  quiescence quiet_;

  // The other members, with a mutex for each.
  peer_table peers_;
  std::atomic<bool> peers_known_{false};         // the table is complete
  std::atomic<std::uint64_t> group_changes_{0};  // incremented when a worker joins or leaves

  // Devices.
  const std::shared_ptr<const device_record> devices_;
  const std::vector<device> declared_devices_ = devices_in_use(*devices_, {});
  made_from_members<std::vector<device>> used_devices_;  // the result of devices(), unless they are declared
  std::atomic<bool> maps_known_{false};                  // there is a map from or to this worker

  // Links.
  struct open_transport {
    std::string name;
    std::shared_ptr<ferry::transport> transport;
    bool listening = false;
  };
  std::vector<open_transport> transports_;
  std::vector<rejected_route> unusable_;  // the requested ones that cannot be used
  std::vector<std::string> advertised_;
  made_from_members<std::set<std::string, std::less<>>> peer_hosts_;  // IP addresses that members listen on
  worker_flow flow_;
  std::atomic<std::uint64_t> sent_{0};     // requests, on links that are open
  std::atomic<std::uint64_t> handled_{0};  // the same
  std::atomic<std::uint64_t> late_replies_{0};
  link_table links_;
  link_checks checks_{links_, reactor_, [this] { return shared_from_this(); }};

  // Membership.
  mutable store_access access_;              // for joining, leaving and fences
  std::unique_ptr<member_log> log_;          // of a dynamic group, once it begins to join; then for good
  std::thread follower_;                     // reads it
  std::atomic<std::uint64_t> joined_{0};     // the index of its own entry
  std::atomic<std::uint64_t> announced_{0};  // as in hellos: the same, or ~0 while the entry is being written
  std::atomic<bool> leave_written_{false};   // or about to be, as the next one
  std::atomic<bool> gone_written_{false};
  std::atomic<deadline> shutdown_until_{deadline(clock::time_point::min())};  // of the last leave

  // Failure.
  std::atomic<std::uint64_t> lost_workers_{0};
  fence fence_;
  heartbeat_clock beats_;
  ranked_mutex ring_mutex_{rank_of_ring};  // guards the next one
  peer* watched_ = nullptr;                // the next member of a dynamic group
};

}  // namespace ferry::inline v0::detail
