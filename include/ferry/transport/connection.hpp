#pragma once

// A connection moves whole messages between two workers, in order, in both directions.

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <ferry/base/time.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0 {

class connection;

/// Where a connection delivers. Set once by connection::start. Calls come from library threads (or from a thread inside
/// connection::drive); messages of one connection are delivered one after the other, in order.
class connection_receiver {
 public:
  virtual ~connection_receiver() = default;
  /// Must not run user code: passes requests to an executor and completes replies.
  virtual void on_message(connection& from, inbound_message&& message) noexcept = 0;
  /// The connection has ended. Called exactly once after start(), after the last on_message. `reason` is never null: a
  /// ferry::error that names the peer.
  virtual void on_closed(connection& which, std::exception_ptr reason) noexcept = 0;
  /// The peer has ended the connection, or it broke, while reading was paused. What the peer had sent before still
  /// arrives, although resume_reading() was not called, and then on_closed() follows: a receiver that has no room drops
  /// it. Called at most once, before those messages. Must not run user code.
  virtual void on_ended_while_paused(connection& which) noexcept { (void)which; }
  /// The notification requested by tell_when_written(). May send more. Must not run user code.
  virtual void on_written(connection& which) noexcept { (void)which; }
  /// Whether tensors may arrive on this device, which need not exist; never called for the CPU. If not, their message
  /// arrives with a failure. Called before memory is allocated.
  [[nodiscard]] virtual bool takes_tensors_on(device where) const noexcept {
    (void)where;
    return true;
  }
  /// How many messages are expected. While this is not zero, a connection whose driver has returned is watched again at
  /// once, or after a few milliseconds if that driver has mostly come back at once; else within tens of milliseconds, without
  /// keep_watched().
  [[nodiscard]] virtual std::size_t expected_messages() const noexcept = 0;
};

/// Decides when drive() stops. Checked between messages.
class drive_condition {
 public:
  [[nodiscard]] virtual bool done() const noexcept = 0;

 protected:
  ~drive_condition() = default;
};

class connection {
 public:
  virtual ~connection() = default;

  /// Starts delivering to `receiver`. Call once.
  virtual void start(std::shared_ptr<connection_receiver> receiver) = 0;

  /// Queues a finished message (outgoing_message::finish was called) and writes what the transport accepts at once;
  /// never blocks. The message and its tensors are kept until written. On a closed connection the message is dropped
  /// (the receiver has been or will be notified by on_closed). Thread-safe.
  virtual void send(outgoing_message&& message) noexcept = 0;
  /// The same, but while messages arrive at a high rate, or one-way messages are sent at one, the transport may hold
  /// this one back, for about a millisecond at most, to write it together with others.
  virtual void send_soon(outgoing_message&& message) noexcept { send(std::move(message)); }
  /// The same, for a message that may be followed by another one at once: while that was so for the last ones, the
  /// transport may hold this one back until the calling thread sends again or waits, for about a millisecond at most.
  /// True: until then the connection need not be watched for an answer. If no message follows, the transport watches it afterwards,
  /// as by keep_watched().
  virtual bool send_with_next(outgoing_message&& message) noexcept {
    send_soon(std::move(message));
    return false;
  }

  /// Bytes of messages accepted by send() and not yet written, tensors included: the memory cost of a peer that does
  /// not read. 0 for a closed connection. The bounds of flow_limits do not apply to a transport without this and the
  /// next function.
  [[nodiscard]] virtual std::uint64_t unwritten_bytes() const noexcept { return 0; }
  /// Requests one call of the receiver's on_written() when no more than `bytes` are unwritten. False if that is so
  /// already, or the connection is closed: then it is not called. A new request replaces the earlier one. Thread-safe.
  virtual bool tell_when_written(std::uint64_t bytes) noexcept {
    (void)bytes;
    return false;
  }

  /// Called by the receiver in on_message() to stop delivery: no further message is begun, and input stays where it is,
  /// in the end at the peer, until resume_reading() or on_ended_while_paused(); a transport without the latter detects
  /// the end of the connection after resume_reading(). Cancellations may still arrive, and then again in their place.
  virtual void pause_reading() noexcept {}
  /// Resumes delivery. Delivers nothing itself. Thread-safe.
  virtual void resume_reading() noexcept {}

  /// The calling thread reads this connection itself until `condition` is met or `until` has passed, which avoids a
  /// thread switch. False if the transport does not support it, another thread reads, or this one had to yield to
  /// another: then the caller sleeps until another thread has read the message it waits for.
  virtual bool drive(const drive_condition& condition, deadline until) noexcept {
    (void)condition, (void)until;
    return false;
  }
  /// Messages are expected and no caller drives: a library thread reads at once, not only after a while. Called from the work of a
  /// thread that itself reads this connection once that is done, it is read then, or by another thread within milliseconds; so it
  /// is where one caller has driven again and again without a pause, and is expected to do so. Thread-safe.
  virtual void keep_watched() noexcept {}
  /// Makes a thread inside drive() check its condition again. Thread-safe.
  virtual void interrupt_drive() noexcept {}

  /// Writes what is queued, then closes; the receiver gets `reason`. A second call meanwhile (the peer may not read)
  /// drops the rest and closes at once. Thread-safe.
  virtual void close(std::exception_ptr reason) noexcept = 0;

  /// Whether messages whose tensors are on devices, or arrive on devices, can be sent (outgoing_message::on_devices);
  /// other connections never get any. The receiver's inbound_message then has the streams they arrive on.
  [[nodiscard]] virtual bool carries_device_tensors() const noexcept { return false; }
  /// The reason, as text for error messages.
  [[nodiscard]] virtual std::string_view why_no_device_tensors() const noexcept {
    return "its transport moves tensors from CPU to CPU only";
  }
  /// Why the peer's device `to` does not read memory of this process's device `from` itself; empty: it does. As long-lived as the
  /// connection.
  [[nodiscard]] virtual std::string_view why_not_direct(device from, device to) const noexcept {
    (void)from, (void)to;
    return "it is for connections over shm";
  }
  /// The other end is in this process, so neither can fail without the other.
  [[nodiscard]] virtual bool same_process() const noexcept { return false; }
  /// "tcp", "unix", ...
  [[nodiscard]] virtual std::string_view transport_name() const noexcept = 0;
  /// For messages: "tcp 10.0.0.2:4711".
  [[nodiscard]] virtual std::string description() const = 0;
};

}  // namespace ferry::inline v0
