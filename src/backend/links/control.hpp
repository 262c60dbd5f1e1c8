#pragma once

// Messages between agents beside calls: frames of kind `control`, on a separate connection, so that they do not wait
// behind tensors. A goodbye is also sent on the connections it ends.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include <ferry/backend/worker_info.hpp>
#include <ferry/transport/connection.hpp>
#include <ferry/wire/limits.hpp>
#include <ferry/wire/message.hpp>

#include "../lock_ranks.hpp"

namespace ferry::inline v0::detail {

/// frame_header::code of a control frame. The numbers are part of the protocol.
enum class control_code : std::uint32_t {
  heartbeat = 1,  ///< the sender lives; no payload
  goodbye = 2,    ///< the sender leaves the group voluntarily; no payload
  fence = 3,      ///< the group declares an incarnation dead; payload: worker_info, u64 incarnation, text
  cancel =
      4,  ///< as a frame of kind cancel, which follows behind the call itself: the caller gave up the call of this id
  question = 5,  ///< of an observer, on its own connection
  answer = 6,    ///< to the question of this id
};

/// The incarnation that the group declares dead.
struct fence_notice {
  worker_info who;
  incarnation_id incarnation;
  std::string reason;

  [[nodiscard]] outgoing_message encode() const;
  /// Throws errc::malformed and similar errors.
  static fence_notice decode(const inbound_message& message, const wire_limits& limits);
};

/// A heartbeat, a goodbye, or the cancellation of a call.
outgoing_message control_message(control_code code, std::uint64_t call_id = 0);
/// Sends a goodbye.
void send_goodbye(connection& to) noexcept;

/// Of what a peer accepts, as its record says: a message above them is an error of its sender's. Thread-safe; read for every message.
class peer_limits {
 public:
  /// Null: there is no record yet, or it has the default ones.
  void set(std::shared_ptr<const wire_limits> limits) noexcept {
    const std::lock_guard lock(mutex_);
    limits_.swap(limits);
    any_.store(limits_ != nullptr, std::memory_order_release);
  }
  [[nodiscard]] std::shared_ptr<const wire_limits> get() const noexcept {
    if (!any_.load(std::memory_order_acquire)) return nullptr;
    const std::lock_guard lock(mutex_);
    return limits_;
  }

 private:
  std::atomic<bool> any_{false};
  mutable ranked_mutex mutex_{rank_of_limits};
  std::shared_ptr<const wire_limits> limits_;
};

/// The far end of a connection.
struct remote_worker {
  // NOLINTNEXTLINE(google-explicit-constructor): most callers give only the worker
  remote_worker(worker_info info, incarnation_id its_incarnation = {}, std::atomic<bool>* heard = nullptr)
      : who(std::move(info)), incarnation(its_incarnation), message_seen(heard) {}
  worker_info who;
  incarnation_id incarnation;
  std::atomic<bool>* message_seen;      ///< set by every message from it; may be null
  const peer_limits* limits = nullptr;  ///< may be null; else lives as long as message_seen

  void heard() const noexcept {
    if (message_seen && !message_seen->load(std::memory_order_relaxed))
      message_seen->store(true, std::memory_order_relaxed);
  }
};

class link_owner;

/// A connection that carries nothing but control frames, in both directions. Thread-safe.
class control_link final : public connection_receiver, public std::enable_shared_from_this<control_link> {
 public:
  /// `accepted`: the peer has opened it.
  control_link(std::shared_ptr<link_owner> owner, remote_worker peer, std::shared_ptr<connection> connection,
               bool accepted);

  void start() { connection_->start(shared_from_this()); }
  void send(outgoing_message&& message) noexcept { connection_->send(std::move(message)); }
  void close(const std::exception_ptr& reason, bool graceful) noexcept;
  [[nodiscard]] const remote_worker& peer() const noexcept { return peer_; }
  [[nodiscard]] bool accepted() const noexcept { return accepted_; }

  // connection_receiver
  void on_message(connection& from, inbound_message&& message) noexcept override;
  void on_closed(connection& which, std::exception_ptr reason) noexcept override;
  [[nodiscard]] std::size_t expected_messages() const noexcept override { return 1; }

 private:
  const std::shared_ptr<link_owner> owner_;
  const remote_worker peer_;
  const std::shared_ptr<connection> connection_;
  const bool accepted_;
};

}  // namespace ferry::inline v0::detail
