#pragma once

// The life of one call at its caller. Internal.

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <ferry/backend/agent.hpp>
#include <ferry/rpc/context.hpp>
#include <ferry/rpc/detail/kept_hooks.hpp>
#include <ferry/wire/archive.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0 {

namespace detail {

class worker_core;
struct method_entry;

/// Properties of a call, for the texts of its errors.
struct call_facts {
  std::shared_ptr<worker_core> worker;
  const method_entry* method = nullptr;
  worker_info peer;
  timeout limit;
  bool inherited = false;           ///< the limit is the time that was left until the running handler's deadline
  incarnation_id incarnation = {};  ///< of the peer
  const char* hint = nullptr;       ///< for the text of a timeout: what else the callee may be waiting for; static
  /// Of a call on an object: throws what the reference has ended with, for which `place` stands until the call has ended.
  void (*check_place)(const void* place) = nullptr;
  const void* place = nullptr;
};

/// What the values of one message send beside its payload and tensors: values of a higher room, which carries them.
/// Made when the first of them is encoded. If it is destroyed without sent() or settled(), the message was not sent.
class carried_handles {
 public:
  virtual ~carried_handles() = default;
  /// The index under which the payload names the handle. Throws what keeps it from being sent.
  virtual std::uint32_t put(const void* handle) = 0;
  /// Adds the records, once the payload has been encoded.
  virtual void seal(outgoing_message& message) = 0;
  /// The message was sent, and will not be answered. Must not block.
  virtual void sent() noexcept = 0;
  /// It was answered (`received`), or its call has ended otherwise: whether it was received is unknown. Must not block.
  virtual void settled(bool received) noexcept = 0;
};

/// The handle_writer of a message. Not thread-safe.
class message_handles final : public handle_writer {
 public:
  message_handles() noexcept = default;
  message_handles(worker_core& worker, const call_target& to) noexcept : worker_(&worker), to_(to) {}

  std::uint32_t put(const void* handle) override;
  /// Adds the records of what was put. Call after the payload has been encoded.
  void seal(outgoing_message& message) {
    if (carried_) carried_->seal(message);
  }
  /// Null: nothing was put.
  [[nodiscard]] std::unique_ptr<carried_handles> release() noexcept { return std::move(carried_); }

 private:
  worker_core* worker_ = nullptr;
  call_target to_ = worker_id{};
  std::unique_ptr<carried_handles> carried_;
};

/// Every event of a call passes here once, on its way to the observers of the worker and to the hooks of interceptors:
/// accepted() or not_accepted(), then one of replied() and failed(), then end(). Movable until it is accepted.
class call_lifecycle {
 public:
  call_lifecycle() noexcept;
  call_lifecycle(call_lifecycle&& other) noexcept;
  call_lifecycle& operator=(call_lifecycle&&) = delete;
  /// A call that was neither accepted nor refused is refused.
  ~call_lifecycle();

  call_facts facts;
  kept_hooks hooks;                          ///< empty for most calls
  std::unique_ptr<carried_handles> carried;  ///< null for most calls
  std::shared_ptr<const void> held;          ///< kept alive until the call has ended
  bool of_one_thread = false;                ///< all that follows is called by the thread that makes the call

  /// The context in which replied() tells the hooks: set it before the call is sent, if there are hooks.
  captured_context context;

  /// The agent has taken the call.
  void accepted(const pending_call& call) noexcept;
  /// The same of a one-way call, which has ended with that. `bytes`: of the request.
  void accepted_one_way(clock::time_point began, std::uint64_t bytes) noexcept;
  /// The agent has not taken it. `why` is null if that is not known. No effect if the call was accepted.
  void not_accepted(const std::exception_ptr& why) noexcept;

  /// A reply has arrived. Quick; on any thread.
  void replied(const pending_call& call, const inbound_message& reply) noexcept;
  /// Tells the hooks of the reply. In `context`, on a thread that may block. Returns the first exception of a hook.
  [[nodiscard]] std::exception_ptr tell_hooks(inbound_message& reply) noexcept {
    return hooks.empty() ? nullptr : tell_hooks_now(reply);
  }
  /// No reply will come.
  void failed(const pending_call& call, errc code, call_phase phase, const std::string& detail) noexcept;
  /// The result has been passed on: the call does not count as active any more.
  void end(const pending_call& call) noexcept;

 private:
  enum class told : std::uint8_t { nothing, telling, sent, ended };
  void settle(bool received) noexcept;
  void tell_sent() noexcept;
  void tell_ended(errc code, call_phase phase, std::string_view text) noexcept;
  [[nodiscard]] std::exception_ptr tell_hooks_now(inbound_message& reply) noexcept;

  std::atomic<told> told_{told::nothing};
};

}  // namespace detail
}  // namespace ferry::inline v0
