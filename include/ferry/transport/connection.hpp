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
  /// Must not run user code: it hands requests to an executor and completes replies.
  virtual void on_message(connection& from, inbound_message&& message) noexcept = 0;
  /// The connection is gone. Called exactly once after start(), after the last on_message. `reason` is never null: a
  /// ferry::error that names the peer.
  virtual void on_closed(connection& which, std::exception_ptr reason) noexcept = 0;
  /// What tell_when_written() asked for: may send more. Must not run user code.
  virtual void on_written(connection& which) noexcept { (void)which; }
  /// Whether tensors may arrive on this device, which need not exist; never asked for the CPU. If not, their message arrives
  /// with a failure. Asked before memory is taken.
  [[nodiscard]] virtual bool takes_tensors_on(device where) const noexcept {
    (void)where;
    return true;
  }
  /// How many messages are expected. While there are any, a connection whose driver left is watched again at once.
  [[nodiscard]] virtual std::size_t expected_messages() const noexcept = 0;
};

/// Tells drive() when to stop. Checked between messages.
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

  /// Queues a finished message (outgoing_message::finish was called) and writes what the transport takes at once; never
  /// blocks. The message and its tensors are kept until written. On a closed connection the message is dropped (the
  /// receiver has been or will be told by on_closed). Thread-safe.
  virtual void send(outgoing_message&& message) noexcept = 0;
  /// The same, but while messages arrive at a high rate, or one-way ones are sent at one, the transport may hold this one
  /// back, for about a millisecond at most, to write it together with others.
  virtual void send_soon(outgoing_message&& message) noexcept { send(std::move(message)); }

  /// Bytes of messages that send() has taken and that are not written yet, tensors included: the memory that a peer which
  /// does not read costs. None of a connection that is closed. A transport without this and the next function is not
  /// held to the bounds of flow_limits.
  [[nodiscard]] virtual std::uint64_t unwritten_bytes() const noexcept { return 0; }
  /// Has the receiver's on_written() called, once, when no more than `bytes` are unwritten. False if that is so already,
  /// or the connection is closed: then it is not called. Asked again it forgets the earlier question. Thread-safe.
  virtual bool tell_when_written(std::uint64_t bytes) noexcept {
    (void)bytes;
    return false;
  }

  /// The receiver, in on_message(), wants nothing more for now: no further message is begun, what comes waits where it is, at
  /// the peer in the end. Until resume_reading() the end of the connection may go unnoticed, too.
  virtual void pause_reading() noexcept {}
  /// Goes on. Delivers nothing itself. Thread-safe.
  virtual void resume_reading() noexcept {}

  /// The calling thread reads this connection itself until `condition` is met or `until` has passed, which spares the
  /// hand-over from a library thread. False if the transport cannot do that, another thread reads, or this one had to
  /// give way to another: then the caller sleeps until another thread has read what it waits for.
  virtual bool drive(const drive_condition& condition, deadline until) noexcept {
    (void)condition, (void)until;
    return false;
  }
  /// Messages are expected and the caller will not drive(): some thread of the library reads from now on. Thread-safe.
  virtual void keep_watched() noexcept {}
  /// Makes a thread inside drive() look at its condition again. Thread-safe.
  virtual void interrupt_drive() noexcept {}

  /// Writes what is queued, then closes; `reason` is what the receiver is told. Called again while that lasts (the peer
  /// may not read), it drops what is left and closes at once. Thread-safe.
  virtual void close(std::exception_ptr reason) noexcept = 0;

  /// Whether messages whose tensors are on devices, or arrive on devices, can be sent (outgoing_message::on_devices); other
  /// connections are never given any. The receiver's inbound_message then has the streams they arrive on.
  [[nodiscard]] virtual bool carries_device_tensors() const noexcept { return false; }
  /// Why not, for people.
  [[nodiscard]] virtual std::string_view why_no_device_tensors() const noexcept {
    return "its transport moves tensors from CPU to CPU only";
  }
  /// The other end is in this process: both live and die together.
  [[nodiscard]] virtual bool same_process() const noexcept { return false; }
  /// "tcp", "unix", ...
  [[nodiscard]] virtual std::string_view transport_name() const noexcept = 0;
  /// For messages: "tcp 10.0.0.2:4711".
  [[nodiscard]] virtual std::string description() const = 0;
};

}  // namespace ferry::inline v0
