#pragma once

// The agent of a worker: moves messages to and from the other workers of its group. It knows no method, no user type
// and runs no user code; the rpc floor sits on both ends of it.

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
  none,  ///< its turn, behind the calls that are under way to that worker
  /// Nothing: where it would have to wait for its turn it goes over a connection of its own. For few and small ones.
  high,
  /// Nothing, and always on a connection of its own: on that of other calls nothing may be read at present.
  apart,
};

/// The caller's end of a call. Exactly one of the two functions is called, once, on a library thread or on the thread
/// that waits for the call; neither may run user code.
class pending_call {
 public:
  std::uint64_t call_id = 0;  ///< set by the agent before it sends
  std::uint64_t method = 0;   ///< the same
  std::uint64_t bytes = 0;    ///< the same: of the request
  clock::time_point began{};  ///< set by whoever makes the call
  call_urgency urgency{};     ///< the same
  /// The same: it is for a worker that leaves, too, as long as that ends its calls. For what the library has to tell.
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
  std::string route = {};      ///< where it leads
};

/// How the tensors of one device of this worker reach one of another worker, in requests or responses.
struct device_route {
  device from = {};
  device to = {};
  std::string channel = {};  ///< its name; empty: there is none
  std::vector<rejected_route> skipped =
      {};  ///< channels that are better, or all if there is none, and why they are not used
};

/// How messages reach a worker, at one moment.
struct route_info {
  std::string transport = {};                ///< of the connection for calls to it; empty: none is open
  std::string description = {};              ///< where it leads
  std::vector<rejected_route> skipped = {};  ///< transports that are better, and why they are not used
  std::vector<device_route> devices =
      {};  ///< from CPU to CPU, and for each entry of the device maps; none without a connection
};
/// Several lines, for people.
[[nodiscard]] std::string to_string(const route_info& route);

/// What has gone between this worker and one peer, in both directions, since the start.
struct peer_traffic {
  worker_info peer = {};
  std::uint64_t calls = 0;           ///< to the peer, one-way ones included
  std::uint64_t errors = 0;          ///< of these, ended with anything but a value
  std::uint64_t served = 0;          ///< requests of the peer
  std::uint64_t bytes_sent = 0;      ///< requests and replies, headers and tensors included
  std::uint64_t bytes_received = 0;  ///< the same
};

/// Where the reply to a request goes. Copies are cheap; keeps the connection alive.
class reply_channel {
 public:
  virtual ~reply_channel() = default;
  /// Who sent the request: another worker may have its id by now. Null: of a backend that does not say.
  [[nodiscard]] virtual const worker_info* sender() const noexcept { return nullptr; }
  /// In which life. None: of a backend that does not say.
  [[nodiscard]] virtual incarnation_id sender_incarnation() const noexcept { return {}; }
  /// Sends the answer to `call_id`: reply, exception or failure. The header's call_id is set here. Never blocks; if the
  /// caller is gone the answer is dropped. Throws what outgoing_message::finish throws; then nothing was sent.
  virtual void reply(std::uint64_t call_id, outgoing_message&& answer) = 0;
  /// The handler of `call_id` begins or ends: meanwhile a cancellation by the caller, or the loss of the connection, stops
  /// `running`, at most once.
  virtual void begin_call(std::uint64_t call_id, stoppable& running) = 0;
  virtual void end_call(std::uint64_t call_id, const stoppable& ended) noexcept = 0;
  /// Whether the handler of a request may begin. If not, since too many bytes of answers to this caller are unwritten, `item`
  /// is posted to `on`, which must live until then, once they are fewer or the connection is lost.
  virtual bool may_begin(work& item, executor& on) noexcept {
    (void)item, (void)on;
    return true;
  }
  /// A request of so many bytes, one-way ones included, has been dealt with: answered, or dropped.
  virtual void handled(std::uint64_t bytes) noexcept = 0;
};

/// Something happened to a member of the group.
struct member_event {
  enum class kind : std::uint8_t {
    joined,  ///< it is a member: one of those that were there before this worker, or a newcomer to a dynamic group
    left,    ///< it has left by its own will
    lost,    ///< it died, or the group has declared it dead
    fenced,  ///< the same for this worker itself: it has been declared dead, and takes no part any more
  };
  kind what{};
  worker_info who;
  incarnation_id incarnation;
  std::string reason;
};

std::string_view to_string(member_event::kind kind) noexcept;

/// Something happened to a connection. The views live during the call.
struct link_event {
  enum class kind : std::uint8_t {
    opened,    ///< by this worker
    accepted,  ///< opened by the peer
    lost,      ///< closed, by whomever
    sent,      ///< a call that had to wait, for the connection or for its turn, has been handed to it
  };
  kind what{};
  const worker_info& who;
  std::string_view text;      ///< where it leads, and why it was lost
  std::uint64_t call_id = 0;  ///< of `sent`
};

/// The rpc floor's end for requests.
class request_handler {
 public:
  virtual ~request_handler() = default;
  /// A request came from `from`. Hands it to an executor, since it is called on a thread that reads.
  virtual void on_request(const std::shared_ptr<reply_channel>& channel, const worker_info& from,
                          inbound_message&& request) noexcept = 0;
  /// In order for each worker. Must not run user code.
  virtual void on_member_event(const member_event& event) noexcept { (void)event; }
  /// A member that has left has ended its calls and handlers by now, too: nothing more comes from it. After its event.
  virtual void on_member_end(worker_id id, incarnation_id incarnation) noexcept { (void)id, (void)incarnation; }
  /// The same.
  virtual void on_link_event(const link_event& event) noexcept { (void)event; }
  /// This worker is about to leave its group: no call is running or under way, and whoever it leaves with has come as far.
  /// The last chance to tell others something. Blocks, at most until the deadline. Called if any of those who leave together
  /// has loose ends.
  /// `alone`: the others go on.
  virtual void on_group_quiet(deadline until, bool alone) { (void)until, (void)alone; }
  /// How much on_group_quiet would have to see to.
  [[nodiscard]] virtual std::uint64_t loose_ends() const noexcept { return 0; }
  /// For the shutdown rounds: work of requests or continuations is running or queued.
  [[nodiscard]] virtual bool busy() const noexcept = 0;
};

/// Names one pending call at its agent; keeps the route alive. Value type.
struct call_ticket {
  std::shared_ptr<void> route;
  std::uint64_t id = 0;
};

/// Figures of an agent; each is a snapshot.
struct agent_counters {
  std::uint64_t client_active_calls = 0;  ///< sent, not yet completed
  std::uint64_t requests_sent = 0;        ///< one-way ones included, on connections that are open
  std::uint64_t late_replies = 0;         ///< that came after their call had ended, and were dropped
  std::uint64_t lost_workers = 0;         ///< of the group, up to now
  std::uint64_t queued_calls = 0;         ///< and notifications that wait to be sent (flow_limits)
  std::uint64_t queued_bytes = 0;         ///< of these
  std::uint64_t unwritten_bytes = 0;      ///< of requests that the transports have taken and not yet written
  std::uint64_t served_bytes = 0;         ///< of requests that have arrived and are not answered
  std::uint64_t unwritten_replies = 0;    ///< bytes that the transports have taken and not yet written
  std::uint64_t held_handlers = 0;        ///< that wait until answers to their caller are written
  std::uint64_t paused_connections = 0;   ///< from which nothing is read until requests are answered
};

/// Who has a name or an id, and since when: another one may take either later.
struct located_worker {
  worker_info who;
  incarnation_id incarnation = {};  ///< none: of a backend that does not say
};

/// Whom a call is for.
struct call_target {
  // NOLINTNEXTLINE(google-explicit-constructor): most do not care for more
  call_target(worker_id to, incarnation_id its = {}) noexcept : id(to), incarnation(its) {}
  worker_id id;
  incarnation_id incarnation;  ///< none: whoever has the id
};

/// All members are thread-safe.
class agent {
 public:
  virtual ~agent() = default;

  [[nodiscard]] virtual const worker_info& self() const noexcept = 0;
  [[nodiscard]] virtual incarnation_id incarnation() const noexcept = 0;
  /// Workers join and leave the group while it runs.
  [[nodiscard]] virtual bool dynamic() const noexcept { return false; }
  /// Everybody in the group, this worker included, by id.
  [[nodiscard]] virtual std::vector<worker_info> workers() const = 0;
  /// Throws errc::unknown_worker, naming this worker and what was looked for.
  [[nodiscard]] virtual worker_info find(std::string_view name) const = 0;
  [[nodiscard]] virtual worker_info find(worker_id id) const = 0;
  /// The same for a call, which may carry what it found. A worker that is not known may have to be looked for: throws
  /// errc::rpc_timeout if that takes until the deadline.
  [[nodiscard]] virtual located_worker locate(std::string_view name, deadline until) const {
    (void)until;
    return {find(name)};
  }
  [[nodiscard]] virtual located_worker locate(worker_id id, deadline until) const {
    (void)until;
    return {find(id)};
  }

  /// The worker of that life, and no other, as somebody else has told of it: this one's list of members may be behind. Throws
  /// errc::peer_lost if it is no member any more, errc::rpc_timeout as above.
  [[nodiscard]] virtual located_worker locate(const call_target& whom, deadline until) const;
  /// Whether that life is certainly over. Never blocks: where a newer list of members is needed to tell, it is asked for, and
  /// the answer is false until it is there. `question` is of the caller, zero at first and the same in every call about it.
  [[nodiscard]] virtual bool is_over(const call_target& whom, std::uint64_t& question) const;

  /// What a worker gave as worker_config::metadata. Throws errc::unknown_worker.
  [[nodiscard]] virtual std::string metadata(worker_id id) const {
    (void)find(id);
    return {};
  }
  /// The devices beside the CPU that messages of this worker may be on: rpc_options::devices, else those in the device maps from
  /// and to it.
  [[nodiscard]] virtual std::vector<device> devices() const { return {}; }
  /// False only if there are none, and none of a message either. Cheap.
  [[nodiscard]] virtual bool uses_devices() const noexcept { return true; }
  /// The device maps for requests to a member, and for the responses to requests of it. Throws errc::unknown_worker.
  [[nodiscard]] virtual device_map request_map(worker_id to) const {
    (void)find(to);
    return {};
  }
  [[nodiscard]] virtual device_map response_map(worker_id to) const {
    (void)find(to);
    return {};
  }
  /// Throws errc::unknown_worker. Nothing of a backend that does not say.
  [[nodiscard]] virtual route_info route(worker_id to) const {
    (void)find(to);
    return {};
  }
  /// Decides where the tensors of a request to a member arrive (outgoing_message::targets): by the map for it, or by
  /// `placement`, if it is not null, for this message alone. Throws errc::bad_device for a tensor that no map has a place for, and
  /// errc::invalid_argument for a placement that does not fit the devices of the two. For a life that is over it does nothing:
  /// the message goes nowhere.
  virtual void place_request(const call_target& to, outgoing_message& request, const device_map* placement) const;
  /// The same for a response; `placement`: the way back of its request's.
  virtual void place_response(const call_target& to, outgoing_message& response, const device_map* placement) const;

  /// Something waits for a worker that has not answered for a while. Should it have ended without anybody telling this one, that
  /// is to be found out: by what certainly means so. That it is silent or cannot be reached does not. Cheap; may be repeated.
  virtual void seek(const call_target& whom) noexcept { (void)whom; }

  /// Blocks until the group has a worker of that name. Throws errc::rpc_timeout, and where nobody can join any more what
  /// find() throws.
  [[nodiscard]] virtual worker_info wait_for(std::string_view name, deadline until) {
    (void)until;
    return find(name);
  }

  /// Joins the group and starts delivering requests to `handler`, which must live until close() has returned. Blocks until
  /// every worker of a static group is there. Call once. Throws what keeps the group from forming:
  /// errc::duplicate_name, duplicate_id, group_mismatch, store_timeout, address_in_use, ...
  virtual void join(request_handler& handler) = 0;

  /// Registers `call` and sends `request` (kind, flags, method, signature, timeout_us set; call_id is set here), or queues
  /// it where too much is under way. If the target's life is not the one that has its id now, the call ends with
  /// errc::peer_lost. With `driven` the caller will wait() for it at once. Throws errc::shutting_down,
  /// errc::resource_exhausted if the queue is full, and what outgoing_message::finish throws: then the call was not sent and
  /// nothing more happens to it.
  virtual call_ticket call(const call_target& to, outgoing_message&& request, pending_call& call, deadline until,
                           bool driven) = 0;
  /// Sends a request that wants no reply. Throws as call().
  virtual void notify(const call_target& to, outgoing_message&& request) = 0;
  /// The current thread does the agent's work of receiving until `condition` or the deadline; false at once if it cannot.
  virtual bool wait(const call_ticket& ticket, const drive_condition& condition, deadline until) noexcept = 0;
  /// Makes a thread in wait() for this ticket look at its condition.
  virtual void interrupt(const call_ticket& ticket) noexcept = 0;
  /// Gives up a call: true if it was still pending, then neither of its functions will be called and the callee is told;
  /// false if one of them has been or is being called.
  virtual bool abandon(const call_ticket& ticket, call_phase& phase) noexcept = 0;
  /// The rpc floor has completed `count` calls, continuations posted: they no longer count as active.
  virtual void finished_calls(std::uint64_t count) noexcept = 0;
  /// Something that busy() reports may have ended.
  virtual void activity_changed() noexcept = 0;

  /// The threads that handlers run on.
  [[nodiscard]] virtual std::shared_ptr<ferry::reactor> reactor() const = 0;
  [[nodiscard]] virtual const rpc_options& options() const noexcept = 0;
  [[nodiscard]] virtual agent_counters counters() const noexcept = 0;
  /// The calls of this worker that have not ended. None of a backend that does not say.
  [[nodiscard]] virtual std::vector<open_call> open_calls() const { return {}; }
  /// Shows `visit` every request that is between begin_call and end_call. It must neither block nor call the agent.
  using request_visitor = std::function<void(const worker_info& from, std::uint64_t call_id, stoppable& running)>;
  virtual void visit_requests(const request_visitor& visit) const { (void)visit; }
  /// How long ago `peer` was heard of, to about a heartbeat; nothing if nobody listens for it: it runs in this process, no
  /// connection to it was ever open, or there are no heartbeats.
  [[nodiscard]] virtual std::optional<std::chrono::nanoseconds> silence(worker_id peer) const noexcept {
    (void)peer;
    return std::nullopt;
  }
  /// By id; without peers that this worker has had nothing to do with.
  [[nodiscard]] virtual std::vector<peer_traffic> traffic() const { return {}; }

  /// In a dynamic group: leave(). In a static one: waits until every worker of the group has called it and no call is
  /// running or under way anywhere, then agrees with the others to leave. Throws errc::shutdown_timeout naming who was
  /// missing, or what the store throws.
  virtual void leave_together(deadline until) = 0;
  /// Tells the group that this worker leaves it, alone, and waits until its own calls and handlers have ended. Others that
  /// call it from now on get errc::peer_lost. Throws errc::shutdown_timeout if calls or handlers are left at the deadline.
  virtual void leave(deadline until) { leave_together(until); }
  /// Somebody does not want to wait for others any more: a leave_together() in progress, and every later one, throws
  /// errc::shutting_down soon. `entirely`: leave() does, too, and the store is closed right afterwards.
  virtual void stop_leaving(bool entirely) noexcept { (void)entirely; }
  /// Closes everything; pending calls end with errc::shutting_down. Idempotent. Afterwards no function of the request
  /// handler is called any more.
  virtual void close() noexcept = 0;
};

}  // namespace ferry::inline v0
