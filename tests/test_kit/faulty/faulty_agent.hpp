#pragma once

// The agent of faulty<B>: between the rpc layer and the agent of B.
//
//   rpc layer -> faulty_agent -> B's agent ... B's agent -> faulty_agent -> rpc layer
//
// Every call has an object that ends it exactly once, whatever happens to its messages: with the result of B's agent,
// at its deadline, when its peer is cut off, or when the agent closes.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/backend/agent.hpp>
#include <ferry/test_kit/fault_rules.hpp>

#include "fault_core.hpp"

namespace ferry::inline v0::detail {

class faulty_call;

/// State shared by the agent, its calls and the held messages. Uses functions of the inner agent only while it exists:
/// not after close() has returned.
class fault_engine final : public fault_listener, public std::enable_shared_from_this<fault_engine> {
 public:
  fault_engine(agent& inner, std::shared_ptr<fault_core> rules) : inner_(inner), rules_(std::move(rules)) {}

  [[nodiscard]] agent& inner() const noexcept { return inner_; }
  [[nodiscard]] fault_core& rules() const noexcept { return *rules_; }

  /// Runs `then`, which must not throw, once `at` has passed, on a thread of the reactor. With `behind` not 0 earlier:
  /// when this many messages to or from `peer` have passed. What is held when the agent closes is dropped; afterwards
  /// throws errc::shutting_down.
  std::uint64_t hold(deadline at, std::function<void()> then, const std::string& peer = {}, int behind = 0);
  /// The same for a message, according to its rule.
  void hold(const fault_rule& rule, const std::string& peer, std::function<void()> then);
  void unhold(std::uint64_t number) noexcept;
  /// A message to or from `peer` has passed.
  void passed(const std::string& peer);

  /// Throws errc::shutting_down once closed.
  void enlist(const std::shared_ptr<faulty_call>& call);
  void delist(faulty_call& call) noexcept;
  /// `inside`: the open calls of the inner agent.
  [[nodiscard]] std::vector<open_call> open_calls(const std::vector<open_call>& inside) const;
  /// Whether something is held.
  [[nodiscard]] bool busy() const noexcept;

  void on_cut(const std::string& peer) noexcept override;
  void stop() noexcept;           ///< drops everything that is held
  void end_all_calls() noexcept;  ///< with shutting_down

 private:
  struct held {
    timer_id timer = timer_id::none;
    work* item = nullptr;
    std::function<void()> then;
    std::string peer;
    int behind = 0;
  };
  struct timer_work;
  void release(std::uint64_t number) noexcept;
  [[noreturn]] void throw_closed() const;

  agent& inner_;
  const std::shared_ptr<fault_core> rules_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable idle_;
  bool closed_ = false;
  int running_ = 0;    // functions that use the inner agent; stop() waits for them
  int releasing_ = 0;  // of these, held messages that are being released
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, held> held_;
  std::map<faulty_call*, std::shared_ptr<faulty_call>> calls_;
};

/// One call. The inner agent's end for it, and, as the route of a ticket, the rpc layer's handle.
class faulty_call final : public pending_call, public std::enable_shared_from_this<faulty_call> {
 public:
  /// `facts`: from the rpc layer's end. `incarnation`: of the peer, as in call_target.
  faulty_call(std::shared_ptr<fault_engine> engine, pending_call* user, open_call facts, incarnation_id incarnation);

  /// Applies the rules. Throws what agent::call throws.
  void begin(outgoing_message&& request, reply_wait how);

  void on_reply(inbound_message&& reply) noexcept override;
  void on_failure(errc code, call_phase phase, const std::string& detail) noexcept override;

  bool wait(const drive_condition& condition, deadline until) noexcept;
  void interrupt() noexcept;
  bool abandon(call_phase& phase) noexcept;
  /// It could not begin: the rpc layer's end must not be called.
  void forget() noexcept;
  /// Ends the call from this layer.
  void fail(errc code, call_phase phase, const std::string& detail) noexcept;

  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
  [[nodiscard]] deadline until() const noexcept { return until_; }
  /// `inside`: the open calls of the inner agent.
  [[nodiscard]] open_call describe(const std::vector<open_call>& inside) const;

 private:
  enum class stage : std::uint8_t { unsent, sending, sent, over };  // at the inner agent

  void send(outgoing_message&& request, reply_wait how);
  void send_late(outgoing_message& request) noexcept;
  void send_copy(outgoing_message&& request) noexcept;
  void deliver(inbound_message&& reply, bool late) noexcept;
  void give_up_inside() noexcept;
  void leave_inside() noexcept;
  void inner_is_over() noexcept;
  void watch_deadline();
  pending_call* take() noexcept { return user_.exchange(nullptr); }
  void ended() noexcept;

  const std::shared_ptr<fault_engine> engine_;
  std::atomic<pending_call*> user_;  // null: it has ended
  const open_call facts_;
  const call_target to_;
  const std::string peer_;
  const std::uint64_t method_;
  const deadline until_;
  mutable std::mutex mutex_;  // guards what follows
  stage stage_ = stage::unsent;
  bool counted_ = false;   // among the calls of the inner agent, for which its shutdown waits
  bool given_up_ = false;  // to be abandoned at the inner agent once it is sent
  call_ticket inner_ticket_;
  std::shared_ptr<faulty_call> keep_;  // while the inner agent refers to it
  std::uint64_t deadline_watch_ = 0;
};

}  // namespace ferry::inline v0::detail
