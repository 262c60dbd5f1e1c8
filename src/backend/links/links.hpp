#pragma once

// The two kinds of connections of the native agent. Each direction of calls has its own: requests are sent on an
// outgoing_link and their replies come back on it; the callee has the other end as an incoming_link.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <ferry/backend/agent.hpp>
#include <ferry/transport/connection.hpp>

#include "../lock_ranks.hpp"
#include "control.hpp"
#include "flow.hpp"

namespace ferry::inline v0::detail {

/// The interface of the agent to its links.
class link_owner {
 public:
  /// The link is closed for good; called once.
  virtual void on_link_closed(void* link) noexcept = 0;
  virtual void count_late_reply() noexcept = 0;
  [[nodiscard]] virtual bool closing() const noexcept = 0;
  /// State shared by all links; lives as long as the owner.
  [[nodiscard]] virtual worker_flow& flow() noexcept = 0;
  /// Requests that were sent, or handled, on links that are open. A link that closes subtracts its own, at both ends:
  /// what was under way on it will never be handled.
  virtual void count_sent(std::int64_t change) noexcept = 0;
  virtual void count_handled(std::int64_t change) noexcept = 0;
  /// Whether tensors may arrive on this device, if it exists.
  [[nodiscard]] virtual bool takes_tensors_on(device where) const noexcept {
    (void)where;
    return true;
  }
  /// Runs `item` on a thread that does not read connections.
  virtual void run_later(work* item) noexcept = 0;
  /// A link has begun to wait for capacity that other links may release: call its look_again() before long.
  virtual void look_again_soon() noexcept = 0;
  /// The earliest deadline of a link's calls has become `at`.
  virtual void check_deadlines_at(deadline at) noexcept = 0;
  /// A connection that carries calls has opened, by this worker or by the peer; each such call is followed by one of
  /// on_link_lost.
  virtual void on_link_open(const remote_worker& peer, const connection& opened, bool by_us) noexcept {
    (void)peer, (void)opened, (void)by_us;
  }
  virtual void on_link_lost(const remote_worker& peer, const connection& lost) noexcept { (void)peer, (void)lost; }
  /// A control frame has arrived from `peer`, on any connection.
  virtual void on_control(const remote_worker& peer, inbound_message&& message) noexcept { (void)peer, (void)message; }
  virtual void on_control_closed(control_link& which) noexcept { (void)which; }
  /// A call to `peer` was given up; the cancellation is queued behind the call. The owner may send it sooner on another
  /// connection.
  virtual void on_cancel(const remote_worker& peer, std::uint64_t call_id) noexcept { (void)peer, (void)call_id; }
  /// For diagnostic records.
  virtual void on_link_event(const link_event& event) noexcept { (void)event; }
  /// The same, for a connection that opened, or (with a reason) was lost.
  void note(link_event::kind what, const remote_worker& peer, const connection& which,
            const std::exception_ptr& reason = nullptr) noexcept;

 protected:
  ~link_owner() = default;
};

/// The properties of a connection that a channel needs.
channel_path path_between(const connection& route, device from, device to) noexcept;
/// Throws errc::bad_device if the finished message has tensors on devices that the connection cannot carry.
void check_carries(const connection& route, const outgoing_message& message);
/// Throws errc::limit_exceeded if the request is above a limit of the peer's.
void check_takes(const remote_worker& peer, const outgoing_message& request);

/// From this worker to one peer: connecting, then open, then closed. Thread-safe.
class outgoing_link final : public connection_receiver, public std::enable_shared_from_this<outgoing_link> {
 public:
  outgoing_link(std::shared_ptr<link_owner> owner, remote_worker peer)
      : owner_(std::move(owner)), peer_(std::move(peer)), flow_(owner_->flow()) {}
  /// For a peer that can no longer be called: every call on it fails with `code` at once.
  outgoing_link(std::shared_ptr<link_owner> owner, remote_worker peer, errc code, std::string detail)
      : owner_(std::move(owner)),
        peer_(std::move(peer)),
        refuses_(true),
        refusal_(code),
        refusal_text_(std::move(detail)),
        flow_(owner_->flow()) {}

  /// Connecting has succeeded: sends what was waiting.
  void opened(std::shared_ptr<connection> connection);
  /// The addresses that were tried without success, and why they failed; for failed_routes().
  void note_failed_routes(std::vector<rejected_route> failed) {
    const std::lock_guard lock(mutex_);
    failed_routes_ = std::move(failed);
  }
  [[nodiscard]] std::vector<rejected_route> failed_routes() const {
    const std::lock_guard lock(mutex_);
    return failed_routes_;
  }
  /// Connecting has failed, or the agent closes: ends all calls with `code`.
  void fail(errc code, const std::string& detail) noexcept;

  /// Registers, and sends or, beyond the bounds, queues; false if the link is closed (then `request` can be sent elsewhere).
  /// notify() on a link that refuses calls throws; both throw errc::resource_exhausted if the queue is full.
  bool call(outgoing_message& request, pending_call& call, deadline until, reply_wait how, std::uint64_t& id);
  bool notify(outgoing_message& request);
  [[nodiscard]] bool within_process() const noexcept {
    return open_.load(std::memory_order_acquire) && connection_->same_process();
  }
  /// Whether a call of this many bytes would have to wait for others to end.
  [[nodiscard]] bool over_limit(std::uint64_t bytes) const noexcept;
  bool abandon(std::uint64_t id, call_phase& phase, bool tell_peer) noexcept;
  bool wait(const drive_condition& condition, deadline until) noexcept;
  void interrupt() noexcept;
  /// Ends the calls whose deadline has passed; returns the earliest one left.
  deadline expire(clock::time_point now) noexcept;
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  /// Connecting has succeeded, and it is not closed.
  [[nodiscard]] bool usable() const noexcept { return open_.load(std::memory_order_acquire) && !closed(); }
  [[nodiscard]] const remote_worker& peer() const noexcept { return peer_; }
  /// The open connection, or null.
  [[nodiscard]] std::shared_ptr<connection> current_connection() const;
  /// Ends all calls with `code`. What is queued may still be written; followed by a goodbye if `graceful`.
  void close(errc code, const std::exception_ptr& reason, bool graceful) noexcept;
  /// Sends a control frame if the connection is open; with `later` also once it is open.
  void send_control(outgoing_message&& message, bool later = false) noexcept;
  /// Appends the calls that have not ended.
  void list_calls(std::vector<open_call>& calls) const;
  /// Adds this link's traffic.
  void add_traffic(peer_traffic& sum) const noexcept;

  // connection_receiver
  void on_message(connection& from, inbound_message&& message) noexcept override;
  void on_closed(connection& which, std::exception_ptr reason) noexcept override;
  void on_written(connection&) noexcept override { pump(); }
  /// Whether the link has requested a look_again(): other links may have released capacity.
  [[nodiscard]] bool waits_for_others() const noexcept { return waits_for_others_.load(std::memory_order_relaxed); }
  void look_again() noexcept;
  [[nodiscard]] bool takes_tensors_on(device where) const noexcept override { return owner_->takes_tensors_on(where); }
  [[nodiscard]] std::size_t expected_messages() const noexcept override { return under_way_.load(); }

 private:
  // The pending calls are in slots; an id is a slot index and the slot's use count.
  struct slot {
    pending_call* call = nullptr;
    std::uint32_t use = 0;  // 1 up to the largest value
    std::uint32_t next_free = 0;
    bool queued = false;
    deadline until;
    send_queue::entries::iterator queued_at;  // if queued
  };
  // With mutex_ held:
  pending_call* take(std::uint64_t id, send_queue::entries& unsent, deadline* until = nullptr) noexcept;
  void note_abandoned(const pending_call& call) noexcept;
  [[nodiscard]] std::uint64_t method_of_abandoned(std::uint64_t id) const noexcept;
  std::uint32_t free_slot();
  [[nodiscard]] bool may_begin_call(bool counted) const noexcept;
  [[nodiscard]] bool may_send(std::uint64_t bytes, bool is_call, bool counted) const noexcept;
  bool wait_for_room() noexcept;
  void begin_sending(send_queue::entry& next) noexcept;
  [[nodiscard]] call_phase unsent_phase() const noexcept {
    return open_.load(std::memory_order_relaxed) ? call_phase::queued : call_phase::connecting;
  }

  bool send_call(outgoing_message&& request, reply_wait how) noexcept;
  void watch_if_unwatched() noexcept;
  bool refuse_unsendable(send_queue::entries& next) noexcept;
  void send_cancel(std::uint64_t id) noexcept;
  void pump() noexcept;
  void end_all(errc code, const std::string& detail) noexcept;

  const std::shared_ptr<link_owner> owner_;
  const remote_worker peer_;
  const bool refuses_ = false;
  const errc refusal_{};
  const std::string refusal_text_;
  worker_flow& flow_;
  mutable ranked_mutex mutex_{rank_of_link};
  std::shared_ptr<connection> connection_;  // set once, before open_
  std::vector<rejected_route> failed_routes_;
  std::atomic<bool> open_{false};
  std::atomic<bool> closed_{false};
  // The first `use`: a late cancellation on another connection must not match a call of the next link.
  const std::uint32_t first_use_ = static_cast<std::uint32_t>(incarnation_id::random().value) | 1U;
  send_queue queue_{flow_};             // until the connection is open, and beyond the bounds
  std::atomic<bool> unwatched_{false};  // a call waits for the next one, whose sender watches the connection
  bool pumping_ = false;                // a thread is sending what was queued: nothing may overtake it
  std::atomic<bool> waits_for_others_{false};
  std::vector<outgoing_message> extras_;  // cancellations sent meanwhile, and control frames before the connection is
                                          // open
  std::vector<slot> slots_;
  // The last calls that were given up after they had been sent, for replies that come nevertheless: ids and methods.
  static constexpr std::size_t most_abandoned = 64;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> abandoned_;
  std::size_t next_abandoned_ = 0;
  std::uint32_t free_slots_ = no_slot;
  std::int64_t sent_ = 0;                  // requests, while not closed
  std::atomic<std::size_t> under_way_{0};  // calls that were sent and have not ended; written with mutex_ held
  std::uint64_t calls_ = 0;
  std::uint64_t errors_ = 0;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
  static constexpr std::uint32_t no_slot = 0xffffffff;
};

/// From one peer to this worker. Thread-safe.
class incoming_link final : public connection_receiver,
                            public reply_channel,
                            public std::enable_shared_from_this<incoming_link> {
 public:
  incoming_link(std::shared_ptr<link_owner> owner, remote_worker peer, request_handler& handler,
                std::shared_ptr<connection> connection)
      : owner_(std::move(owner)),
        peer_(std::move(peer)),
        flow_(owner_->flow()),
        handler_(handler),
        connection_(std::move(connection)) {}

  /// Begins to receive.
  void start();
  /// What is queued may still be written; followed by a goodbye if `graceful`.
  void close(const std::exception_ptr& reason, bool graceful) noexcept;
  void send_control(outgoing_message&& message) noexcept { connection_->send(std::move(message)); }
  [[nodiscard]] const remote_worker& peer() const noexcept { return peer_; }
  struct load {
    std::uint64_t calls;
    std::uint64_t bytes;
  };
  /// The requests that have arrived and are not answered.
  [[nodiscard]] load served_now() const noexcept;
  void visit_requests(const agent_inspection::request_visitor& visit) const;
  /// Adds this link's traffic.
  void add_traffic(peer_traffic& sum) const noexcept;

  // connection_receiver
  void on_message(connection& from, inbound_message&& message) noexcept override;
  void on_closed(connection& which, std::exception_ptr reason) noexcept override;
  void on_ended_while_paused(connection&) noexcept override { drops_requests_.store(true, std::memory_order_relaxed); }
  void on_written(connection& which) noexcept override;
  [[nodiscard]] bool takes_tensors_on(device where) const noexcept override { return owner_->takes_tensors_on(where); }
  [[nodiscard]] std::size_t expected_messages() const noexcept override { return 1; }

  // reply_channel
  [[nodiscard]] const worker_info* sender() const noexcept override { return &peer_.who; }
  [[nodiscard]] incarnation_id sender_incarnation() const noexcept override { return peer_.incarnation; }
  [[nodiscard]] bool within_process() const noexcept override { return connection_->same_process(); }
  [[nodiscard]] std::shared_ptr<const wire_limits> sender_limits() const noexcept override {
    return peer_.limits ? peer_.limits->get() : nullptr;
  }
  void reply(std::uint64_t call_id, outgoing_message&& answer) override;
  void begin_call(std::uint64_t call_id, stoppable& running) override;
  void end_call(std::uint64_t call_id, const stoppable& ended) noexcept override;
  bool may_begin(work& item, executor& on) noexcept override;
  void handled(std::uint64_t bytes) noexcept override;
  /// Whether the link has requested a look_again(): others may have fewer requests to answer.
  [[nodiscard]] bool waits_for_others() const noexcept { return waits_for_others_.load(std::memory_order_relaxed); }
  void look_again() noexcept;

  /// The caller has given up a call, which may have ended, or not have arrived yet.
  void cancel(std::uint64_t call_id) noexcept;
  /// Reading is paused, because too much is being served.
  [[nodiscard]] bool paused() const noexcept {
    const std::lock_guard lock(mutex_);
    return paused_;
  }

 private:
  struct held_handler {
    work* item;
    executor* on;
  };
  /// Whether `own`, multiplied by `times`, exceeds the bounds, so that reading must pause: on its own, or because of
  /// the sum over all links.
  enum class excess : std::uint8_t { none, own, shared };
  [[nodiscard]] excess excess_of(const load& own, std::uint64_t times) const noexcept;
  [[nodiscard]] bool congested() const noexcept;
  [[nodiscard]] bool to_publish(const load& own) const noexcept;
  // With mutex_ held:
  void publish(const load& own) noexcept;
  void pause() noexcept;
  void resume_if_less() noexcept;
  void look_again_soon() noexcept;
  void release(std::vector<held_handler>& held) noexcept;

  const std::shared_ptr<link_owner> owner_;
  const remote_worker peer_;
  worker_flow& flow_;
  request_handler& handler_;
  const std::shared_ptr<connection> connection_;
  struct running_call {
    std::uint64_t id = 0;
    stoppable* call = nullptr;
  };
  stoppable** find_running(std::uint64_t call_id) noexcept;  // with mutex_ held

  // A caller of this library numbers its calls by slots that it reuses, so the low halves are small and dense.
  static constexpr std::uint32_t dense_slots = 4096;
  mutable ranked_mutex mutex_{rank_of_link};
  std::vector<running_call> running_;  // by slot, those below dense_slots
  // By id. A caller may, against the protocol, use one id for several calls at once: they end with the connection, too.
  std::unordered_multimap<std::uint64_t, stoppable*> others_running_;
  bool closed_ = false;
  std::int64_t handled_ = 0;  // requests, while not closed
  bool paused_ = false;
  std::atomic<bool> waits_for_others_{false};
  std::atomic<bool> drops_requests_{
      false};  // there is no room for those that are left, and no caller for their answers
  std::atomic<std::uint64_t> published_{0};  // of served_now(), in the worker's sum; written with mutex_ held
  std::atomic<std::uint64_t> published_bytes_{0};
  std::vector<held_handler> held_;
  std::atomic<std::uint64_t> ended_{0};  // requests, and their bytes; written with mutex_ held
  std::atomic<std::uint64_t> ended_bytes_{0};
  // Written by the thread that reads the connection, one at a time.
  std::atomic<std::uint64_t> served_{0};
  std::atomic<std::uint64_t> served_bytes_{0};
  std::atomic<std::uint64_t> bytes_received_{0};
  std::atomic<std::uint64_t> bytes_sent_{0};
};

}  // namespace ferry::inline v0::detail
