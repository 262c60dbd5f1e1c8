#pragma once

// The agent of a worker: moves messages to and from the other workers of its group. It has no notion of methods or user
// types and runs no user code; the rpc layer is above it on both sides.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/backend/options.hpp>
#include <ferry/backend/worker_info.hpp>
#include <ferry/base/time.hpp>
#include <ferry/base/work.hpp>
#include <ferry/transport/channel.hpp>
#include <ferry/transport/connection.hpp>
#include <ferry/transport/reactor.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0 {

/// How far a call had come when it failed.
enum class call_phase : std::uint8_t { connecting, queued, waiting_for_reply };
std::string_view to_string(call_phase phase) noexcept;

/// What a call waits for before it is sent.
enum class call_urgency : std::uint8_t {
  none,  ///< send in order, behind the calls that are under way to that worker
  /// Send at once: if the call would have to queue, it uses a separate connection. For few and small calls.
  high,
  /// Send at once, and always on a separate connection: the one for ordinary calls may not be read at present.
  apart,
};

/// The caller's end of a call. Exactly one of the two functions is called, once, on a library thread or on the thread
/// that waits for the call; neither may run user code.
class pending_call {
 public:
  std::uint64_t call_id = 0;  ///< set by the agent before it sends
  std::uint64_t method = 0;   ///< the same
  std::uint64_t bytes = 0;    ///< the same: of the request
  clock::time_point began{};  ///< set by the caller
  call_urgency urgency{};     ///< the same
  /// The same. The call may also go to a leaving worker, as long as that worker ends its calls. For the library's own
  /// messages.
  bool reaches_leaving = false;

  virtual void on_reply(inbound_message&& reply) noexcept = 0;
  /// `detail` says what happened to the connection or why the agent gave up.
  virtual void on_failure(errc code, call_phase phase, const std::string& detail) noexcept = 0;

 protected:
  ~pending_call() = default;
};

/// A call that has not ended, at one moment.
struct open_call {
  std::uint64_t id = 0;
  std::uint64_t method = 0;
  worker_info peer = {};
  call_phase phase{};
  clock::time_point began = {};
  deadline until = {};
  std::uint64_t bytes = 0;
  std::string transport = {};  ///< of the connection; empty: none is open
  std::string route = {};      ///< its description
};

/// How tensors on one device of this worker reach a device of another worker, in requests or responses.
struct device_route {
  device from = {};
  device to = {};
  std::string channel = {};                  ///< its name; empty: there is none
  std::vector<rejected_route> skipped = {};  ///< better channels, or all if there is none, and why each is not used
};

/// How messages reach a worker, a snapshot.
struct route_info {
  std::string transport = {};                ///< of the connection for calls to it; empty: none is open
  std::string description = {};              ///< of the connection
  std::vector<rejected_route> skipped = {};  ///< better transports, and why each is not used
  std::vector<device_route> devices =
      {};  ///< from CPU to CPU, and for each entry of the device maps; empty without a connection
};
/// Multi-line text for diagnostics.
[[nodiscard]] std::string to_string(const route_info& route);

/// Traffic between this worker and one peer, in both directions, since the start.
struct peer_traffic {
  worker_info peer = {};
  std::uint64_t calls = 0;           ///< to the peer, one-way ones included
  std::uint64_t errors = 0;          ///< of these, ended without a value
  std::uint64_t served = 0;          ///< requests of the peer
  std::uint64_t bytes_sent = 0;      ///< requests and replies, headers and tensors included
  std::uint64_t bytes_received = 0;  ///< the same
};

/// Where the reply to a request goes. Copies are cheap; keeps the connection alive.
class reply_channel {
 public:
  virtual ~reply_channel() = default;
  /// The sender of the request: its id may belong to another worker by now. Null if the backend does not provide it.
  [[nodiscard]] virtual const worker_info* sender() const noexcept { return nullptr; }
  /// The sender's incarnation. None if the backend does not provide it.
  [[nodiscard]] virtual incarnation_id sender_incarnation() const noexcept { return {}; }
  /// Sends the answer to `call_id`: reply, exception or failure. Sets the header's call_id. Never blocks; if the caller
  /// has terminated the answer is dropped. Throws what outgoing_message::finish throws; then nothing was sent.
  virtual void reply(std::uint64_t call_id, outgoing_message&& answer) = 0;
  /// The handler of `call_id` begins or ends. In between, a cancellation by the caller or the loss of the connection
  /// stops `running`, at most once.
  virtual void begin_call(std::uint64_t call_id, stoppable& running) = 0;
  virtual void end_call(std::uint64_t call_id, const stoppable& ended) noexcept = 0;
  /// Whether the handler of a request may begin. If not, because too many bytes of answers to this caller are
  /// unwritten, `item` is posted to `on` (which must live until then) once fewer are unwritten or the connection is
  /// lost.
  virtual bool may_begin(work& item, executor& on) noexcept {
    (void)item, (void)on;
    return true;
  }
  /// A request of this many bytes (frame_header::held_bytes()), one-way ones included, is done: answered, or dropped.
  virtual void handled(std::uint64_t bytes) noexcept = 0;
};

/// Something happened to a member of the group.
struct member_event {
  enum class kind : std::uint8_t {
    joined,  ///< it is a member: one that was there before this worker, or a newcomer to a dynamic group
    left,    ///< it left voluntarily
    lost,    ///< it died, or the group has declared it dead
    fenced,  ///< this worker itself has been declared dead and takes no further part
  };
  kind what{};
  worker_info who;
  incarnation_id incarnation;
  std::string reason;
};

std::string_view to_string(member_event::kind kind) noexcept;

/// Something happened to a connection. The views are valid during the call.
struct link_event {
  enum class kind : std::uint8_t {
    opened,    ///< by this worker
    accepted,  ///< opened by the peer
    lost,      ///< closed, by either end
    sent,      ///< a call that had to wait, for the connection or for its turn, was passed to it
  };
  kind what{};
  const worker_info& who;
  std::string_view text;      ///< the connection's description, and why it was lost
  std::uint64_t call_id = 0;  ///< of `sent`
};

/// Receives requests in the rpc layer.
class request_handler {
 public:
  virtual ~request_handler() = default;
  /// A request came from `from`. Must pass it to an executor, since it is called on a thread that reads.
  virtual void on_request(const std::shared_ptr<reply_channel>& channel, const worker_info& from,
                          inbound_message&& request) noexcept = 0;
  /// In order for each worker. Must not run user code.
  virtual void on_member_event(const member_event& event) noexcept { (void)event; }
  /// A member that has left has now ended its calls and handlers, too: nothing more comes from it. Called after its
  /// `left` event.
  virtual void on_member_end(worker_id id, incarnation_id incarnation) noexcept { (void)id, (void)incarnation; }
  /// The same.
  virtual void on_link_event(const link_event& event) noexcept { (void)event; }
  /// This worker is about to leave its group: no call is running or under way, here or at the workers that leave with
  /// it. The last chance to send messages to others. Blocks, at most until the deadline. Called if any of the workers
  /// that leave together has loose ends.
  /// `alone`: the others stay in the group.
  virtual void on_group_quiet(deadline until, bool alone) { (void)until, (void)alone; }
  /// How much work on_group_quiet would have.
  [[nodiscard]] virtual std::uint64_t loose_ends() const noexcept { return 0; }
  /// For the shutdown rounds: work of requests or continuations is running or queued.
  [[nodiscard]] virtual bool busy() const noexcept = 0;
};

/// Identifies one pending call at its agent; keeps the link alive. Value type.
struct call_ticket {
  std::shared_ptr<void> route;
  std::uint64_t id = 0;
};

/// Counters of an agent; each is a snapshot.
struct agent_counters {
  std::uint64_t client_active_calls = 0;  ///< sent, not yet completed
  std::uint64_t requests_sent = 0;        ///< one-way ones included, on connections that are open
  std::uint64_t late_replies = 0;         ///< arrived after their call had ended, and were dropped
  std::uint64_t lost_workers = 0;         ///< of the group, up to now
  std::uint64_t queued_calls = 0;         ///< calls and notifications that wait to be sent (flow_limits)
  std::uint64_t queued_bytes = 0;         ///< of the queued ones
  std::uint64_t unwritten_bytes = 0;      ///< of requests that the transports have accepted and not yet written
  std::uint64_t served_bytes = 0;         ///< of requests that have arrived and are not answered
  std::uint64_t unwritten_replies = 0;    ///< bytes that the transports have accepted and not yet written
  std::uint64_t held_handlers = 0;        ///< waiting until answers to their caller are written
  std::uint64_t paused_connections = 0;   ///< not read until requests are answered
};

/// The worker that has a name or an id at present, and its incarnation: another worker may take either later.
struct located_worker {
  worker_info who;
  incarnation_id incarnation = {};  ///< none if the backend does not provide it
};

/// The destination of a call.
struct call_target {
  // NOLINTNEXTLINE(google-explicit-constructor): most callers give only the id
  call_target(worker_id to, incarnation_id its = {}) noexcept : id(to), incarnation(its) {}
  worker_id id;
  incarnation_id incarnation;  ///< none: the worker that has the id at present
};

/// All members are thread-safe.
class agent {
 public:
  virtual ~agent() = default;

  [[nodiscard]] virtual const worker_info& self() const noexcept = 0;
  [[nodiscard]] virtual incarnation_id incarnation() const noexcept = 0;
  /// Workers join and leave the group while it runs.
  [[nodiscard]] virtual bool dynamic() const noexcept { return false; }
  /// All workers of the group, this one included, by id.
  [[nodiscard]] virtual std::vector<worker_info> workers() const = 0;
  /// Throws errc::unknown_worker, naming this worker and what was looked up.
  [[nodiscard]] virtual worker_info find(std::string_view name) const = 0;
  [[nodiscard]] virtual worker_info find(worker_id id) const = 0;
  /// The same for a call, which may carry the result. An unknown worker may require a lookup in the store: throws
  /// errc::rpc_timeout if that takes until the deadline.
  [[nodiscard]] virtual located_worker locate(std::string_view name, deadline until) const {
    (void)until;
    return {find(name)};
  }
  [[nodiscard]] virtual located_worker locate(worker_id id, deadline until) const {
    (void)until;
    return {find(id)};
  }

  /// The worker of that incarnation only, as reported by another worker: this one's list of members may be behind.
  /// Throws errc::peer_lost if it is no longer a member, errc::rpc_timeout as above.
  [[nodiscard]] virtual located_worker locate(const call_target& whom, deadline until) const;
  /// Whether that incarnation has certainly ended. Never blocks: if a newer list of members is needed to decide, it is
  /// requested, and the answer is false until it has arrived. `question` is owned by the caller: zero at first, and the
  /// same variable in every call about that incarnation.
  [[nodiscard]] virtual bool is_over(const call_target& whom, std::uint64_t& question) const;

  /// What a worker gave as worker_config::metadata. Throws errc::unknown_worker.
  [[nodiscard]] virtual std::string metadata(worker_id id) const {
    (void)find(id);
    return {};
  }
  /// The devices beside the CPU that messages of this worker may be on: rpc_options::devices, else those in the device
  /// maps from and to it.
  [[nodiscard]] virtual std::vector<device> devices() const { return {}; }
  /// False only if there are none, neither for this worker nor for a single message. Cheap.
  [[nodiscard]] virtual bool uses_devices() const noexcept { return true; }
  /// The device maps for requests to a member, and for the responses to its requests. Throws errc::unknown_worker.
  [[nodiscard]] virtual device_map request_map(worker_id to) const {
    (void)find(to);
    return {};
  }
  [[nodiscard]] virtual device_map response_map(worker_id to) const {
    (void)find(to);
    return {};
  }
  /// Throws errc::unknown_worker. Empty if the backend does not provide it.
  [[nodiscard]] virtual route_info route(worker_id to) const {
    (void)find(to);
    return {};
  }
  /// Decides where the tensors of a request to a member arrive (outgoing_message::targets): by its device map, or by
  /// `placement`, if it is not null, for this message alone. Throws errc::bad_device for a tensor on a device that no
  /// map covers, and errc::invalid_argument for a placement that does not fit the devices of the two workers. No-op for
  /// an incarnation that has ended: the message is not sent.
  virtual void place_request(const call_target& to, outgoing_message& request, const device_map* placement) const;
  /// The same for a response; `placement`: the inverse of its request's.
  virtual void place_response(const call_target& to, outgoing_message& response, const device_map* placement) const;

  /// Something waits for a worker that has not answered for a while. If that worker has ended unnoticed, the agent
  /// finds out, by conclusive evidence only: silence or unreachability is not. Cheap; may be repeated.
  virtual void seek(const call_target& whom) noexcept { (void)whom; }

  /// Blocks until the group has a worker of that name. Throws errc::rpc_timeout, and if no worker can join any more
  /// what find() throws.
  [[nodiscard]] virtual worker_info wait_for(std::string_view name, deadline until) {
    (void)until;
    return find(name);
  }

  /// Brings workers() up to date where it may lag (dynamic groups): includes every worker that had joined before the
  /// call. Blocks until the deadline at most. False: it could not.
  virtual bool update_workers(deadline until) {
    (void)until;
    return true;
  }

  /// Joins the group and starts delivering requests to `handler`, which must live until close() has returned. Blocks until
  /// every worker of a static group is there. Call once. Throws what keeps the group from forming:
  /// errc::duplicate_name, duplicate_id, group_mismatch, store_timeout, address_in_use, ...
  virtual void join(request_handler& handler) = 0;

  /// Registers `call` and sends `request` (kind, flags, method, signature, timeout_us set; call_id is set here), or
  /// queues it if too much is under way. If the target's incarnation is not the current one of that id, the call ends
  /// with errc::peer_lost. With `driven` the caller will wait() for it at once. Throws errc::shutting_down,
  /// errc::resource_exhausted if the queue is full, and what outgoing_message::finish throws: then the call was not
  /// sent and `call` is not used again.
  virtual call_ticket call(const call_target& to, outgoing_message&& request, pending_call& call, deadline until,
                           bool driven) = 0;
  /// Sends a request that wants no reply. Throws as call().
  virtual void notify(const call_target& to, outgoing_message&& request) = 0;
  /// The current thread receives for the agent until `condition` or the deadline; returns false at once if it cannot.
  virtual bool wait(const call_ticket& ticket, const drive_condition& condition, deadline until) noexcept = 0;
  /// Makes a thread in wait() for this ticket check its condition.
  virtual void interrupt(const call_ticket& ticket) noexcept = 0;
  /// Gives up a call: true if it was still pending, then neither of its functions will be called and the callee is
  /// notified; false if one of them has been or is being called.
  virtual bool abandon(const call_ticket& ticket, call_phase& phase) noexcept = 0;
  /// The rpc layer has completed `count` calls, continuations posted: they no longer count as active.
  virtual void finished_calls(std::uint64_t count) noexcept = 0;
  /// Something that busy() reports may have ended.
  virtual void activity_changed() noexcept = 0;

  /// The threads that handlers run on.
  [[nodiscard]] virtual std::shared_ptr<ferry::reactor> reactor() const = 0;
  [[nodiscard]] virtual const rpc_options& options() const noexcept = 0;
  [[nodiscard]] virtual agent_counters counters() const noexcept = 0;
  /// The calls of this worker that have not ended. Empty if the backend does not provide it.
  [[nodiscard]] virtual std::vector<open_call> open_calls() const { return {}; }
  /// Calls `visit` for every request that is between begin_call and end_call. It must neither block nor call the agent.
  using request_visitor = std::function<void(const worker_info& from, std::uint64_t call_id, stoppable& running)>;
  virtual void visit_requests(const request_visitor& visit) const { (void)visit; }
  /// Time since `peer` was last heard from, accurate to about a heartbeat; empty if it is not monitored: it runs in
  /// this process, no connection to it was ever open, or there are no heartbeats.
  [[nodiscard]] virtual std::optional<std::chrono::nanoseconds> silence(worker_id peer) const noexcept {
    (void)peer;
    return std::nullopt;
  }
  /// By id; without peers that this worker has had no traffic with.
  [[nodiscard]] virtual std::vector<peer_traffic> traffic() const { return {}; }

  /// In a dynamic group: leave(). In a static one: waits until every worker of the group has called it and no call is
  /// running or under way anywhere, then agrees with the others to leave. Throws errc::shutdown_timeout naming the
  /// missing workers, or what the store throws.
  virtual void leave_together(deadline until) = 0;
  /// Announces that this worker alone leaves the group, and waits until its own calls and handlers have ended. Others
  /// that call it from now on get errc::peer_lost. Throws errc::shutdown_timeout if calls or handlers are left at the
  /// deadline.
  virtual void leave(deadline until) { leave_together(until); }
  /// Interrupts waits for others: a leave_together() in progress, and every later one, throws errc::shutting_down soon.
  /// `entirely`: leave() does, too, and the store is closed right afterwards.
  virtual void stop_leaving(bool entirely) noexcept { (void)entirely; }
  /// Closes everything; pending calls end with errc::shutting_down. Idempotent. Afterwards no function of the request
  /// handler is called any more.
  virtual void close() noexcept = 0;
};

}  // namespace ferry::inline v0
