#pragma once

// The answer to a request. Internal.

#include <cstdint>
#include <exception>
#include <string>

#include <ferry/backend/agent.hpp>
#include <ferry/rpc/detail/call_lifecycle.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0::detail {

class incoming_call;
class worker_core;

/// Every answer leaves through one of these: a value, an exception of the method, or a failure. If it is destroyed
/// without having been sent, what its values carried is released. Not thread-safe.
class reply_writer {
 public:
  /// A value, empty unless it is encoded into `message`.
  explicit reply_writer(incoming_call& call);
  /// To a request that did not become a call. The three must outlive the writer.
  reply_writer(worker_core& worker, reply_channel& channel, const call_target& caller, std::uint64_t call_id);
  reply_writer(const reply_writer&) = delete;
  reply_writer& operator=(const reply_writer&) = delete;

  outgoing_message message;

  /// The answer is an exception of the method, or a failure that says why it cannot be sent.
  void be_exception(const std::exception_ptr& thrown);
  /// The answer is a failure of the call. Its text is cut to what a message may have.
  void be_failure(errc code, const std::string& text);
  /// Places the tensors, lets the hooks of the call see the answer, and sends it. Throws what they throw, and what
  /// agent::place_response and reply_channel::reply throw, and errc::limit_exceeded; then nothing was sent.
  void send();
  [[nodiscard]] bool is_value() const noexcept { return message.header.kind == frame_kind::reply; }

 private:
  void place();
  void check(std::string_view what) const;  // throws errc::limit_exceeded

  incoming_call* const call_;
  worker_core& worker_;
  reply_channel& channel_;
  const call_target to_;
  const std::uint64_t id_;
  message_handles handles_;
};

}  // namespace ferry::inline v0::detail
