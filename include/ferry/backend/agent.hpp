#pragma once

// The agent of a worker: moves messages to and from the other workers of its group. It has no notion of methods or user
// types and runs no user code; the rpc layer is above it on both sides.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <ferry/backend/group_view.hpp>
#include <ferry/backend/inspection.hpp>
#include <ferry/backend/options.hpp>
#include <ferry/backend/worker_info.hpp>
#include <ferry/base/time.hpp>
#include <ferry/base/work.hpp>
#include <ferry/transport/connection.hpp>
#include <ferry/transport/reactor.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0 {

class observer_question;

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

/// Where the reply to a request goes. Copies are cheap; keeps the connection alive.
class reply_channel {
 public:
  virtual ~reply_channel() = default;
  /// The sender of the request: its id may belong to another worker by now. Null if the backend does not provide it.
  [[nodiscard]] virtual const worker_info* sender() const noexcept { return nullptr; }
  /// The sender's incarnation. None if the backend does not provide it.
  [[nodiscard]] virtual incarnation_id sender_incarnation() const noexcept { return {}; }
  /// Those that the sender applies to what it receives. Null: the default ones, or unknown.
  [[nodiscard]] virtual std::shared_ptr<const wire_limits> sender_limits() const noexcept { return nullptr; }
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
  /// Whether answers stay within the process, so that tensors of which they have the only handle need not be copied.
  [[nodiscard]] virtual bool within_process() const noexcept { return false; }
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
    opened,      ///< by this worker
    accepted,    ///< opened by the peer
    lost,        ///< closed, by either end
    sent,        ///< a call that had to wait, for the connection or for its turn, was passed to it
    late_reply,  ///< came after its call had ended, and was dropped
  };
  kind what{};
  const worker_info& who;
  std::string_view text;      ///< the connection's description, and why it was lost
  std::uint64_t call_id = 0;  ///< of `sent` and `late_reply`
  std::uint64_t method = 0;   ///< of `late_reply`; 0: no longer known
  std::uint64_t bytes = 0;    ///< of `late_reply`: of the message
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
  /// An observer asks. Must not block.
  virtual void on_question(std::shared_ptr<observer_question> question) noexcept;
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

/// A worker that agent::open() has found, for calls to it: nothing looks it up again. Value type; of use while its agent
/// lives, also when the worker has left: then calls end with errc::peer_lost.
struct peer_route : located_worker {
  void* record = nullptr;  ///< as in call_target
  [[nodiscard]] call_target target() const noexcept { return {who.id(), incarnation, record}; }
};

/// Which thread reads the reply of a call.
enum class reply_wait : std::uint8_t {
  none,     ///< one of the reactor, as soon as the reply has come; or a caller that waits for one reply after the other
  at_once,  ///< the caller, which will wait() for it at once
  unhurried,  ///< whichever reads the connection next: of a caller that waits, or after some milliseconds of the reactor
  /// As `none`, for a request that the next one of the calling thread may follow at once: if that has been so lately, it
  /// may wait for that one, to be sent with it (connection::send_with_next).
  bundled,
};

/// Moves messages to and from the other workers of a group. A backend implements the functions that have no default.
/// All members are thread-safe.
class agent {
 public:
  virtual ~agent() = default;

  [[nodiscard]] virtual const worker_info& self() const noexcept = 0;
  /// None if the backend does not provide it.
  [[nodiscard]] virtual incarnation_id incarnation() const noexcept { return {}; }
  [[nodiscard]] virtual const rpc_options& options() const noexcept = 0;
  /// The threads that handlers run on.
  [[nodiscard]] virtual std::shared_ptr<ferry::reactor> reactor() const = 0;
  /// Lives as long as the agent, as does inspection().
  [[nodiscard]] virtual const group_view& members() const noexcept = 0;
  [[nodiscard]] virtual const agent_inspection& inspection() const noexcept;

  /// Joins the group and starts delivering requests to `handler`, which must live until close() has returned. Blocks until
  /// every worker of a static group is there. Call once. Throws what keeps the group from forming:
  /// errc::duplicate_name, duplicate_id, group_mismatch, store_timeout, address_in_use, ...
  virtual void join(request_handler& handler) = 0;

  /// Looks up the destination of a call. Throws what group_view::locate() throws.
  [[nodiscard]] virtual peer_route open(std::string_view name, deadline until);
  [[nodiscard]] virtual peer_route open(worker_id id, deadline until);
  [[nodiscard]] virtual peer_route open(const call_target& whom, deadline until);

  /// Decides where the tensors of a request to a member arrive (outgoing_message::targets): by its device map, or by
  /// `placement`, if it is not null, for this message alone. Throws errc::bad_device for a tensor on a device that no
  /// map covers, and errc::invalid_argument for a placement that does not fit the devices of the two workers. No-op for
  /// an incarnation that has ended: the message is not sent.
  virtual void place_request(const call_target& to, outgoing_message& request, const device_map* placement) const;
  /// The same for a response; `placement`: the inverse of its request's.
  virtual void place_response(const call_target& to, outgoing_message& response, const device_map* placement) const;
  /// Whether requests to a member stay within the process at present, so that tensors of which they have the only handle need not
  /// be copied.
  [[nodiscard]] virtual bool within_process(const call_target& to) const noexcept {
    (void)to;
    return false;
  }
  /// Registers `call` and sends `request` (kind, flags, method, signature, timeout_us set; call_id is set here), or
  /// queues it if too much is under way. If the target's incarnation is not the current one of that id, the call ends
  /// with errc::peer_lost. Throws errc::shutting_down, errc::resource_exhausted if the queue is full, and what
  /// outgoing_message::finish throws: then the call was not sent and `call` is not used again. At `until` the agent ends the call
  /// with errc::rpc_timeout, whether or not a thread waits for it.
  virtual call_ticket call(const call_target& to, outgoing_message&& request, pending_call& call, deadline until,
                           reply_wait how) = 0;
  /// Sends a request that wants no reply. Throws as call().
  virtual void notify(const call_target& to, outgoing_message&& request) = 0;
  /// The current thread receives for the agent until `condition` or the deadline; returns false at once if it cannot.
  virtual bool wait(const call_ticket& ticket, const drive_condition& condition, deadline until) noexcept {
    (void)ticket, (void)condition, (void)until;
    return false;
  }
  /// Makes a thread in wait() for this ticket check its condition.
  virtual void interrupt(const call_ticket& ticket) noexcept { (void)ticket; }
  /// Gives up a call: true if it was still pending, then neither of its functions will be called and the callee is
  /// notified; false if one of them has been or is being called.
  virtual bool abandon(const call_ticket& ticket, call_phase& phase) noexcept = 0;
  /// The rpc layer has completed `count` calls, continuations posted: they no longer count as active.
  virtual void finished_calls(std::uint64_t count) noexcept = 0;
  /// Something that busy() reports may have ended.
  virtual void activity_changed() noexcept = 0;

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
