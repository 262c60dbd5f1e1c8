#pragma once

// Connections between workers of one process: messages are passed in memory.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ferry/transport/connection.hpp>
#include <ferry/transport/reactor.hpp>

#include "../reactor/adaptive_spin.hpp"
#include "../reactor/io_threads.hpp"
#include "handover_slot.hpp"

namespace ferry::inline v0::detail {

/// One end. Value semantics are kept: the receiver gets copies of the tensors, made inside send(), or queued there if
/// they are on devices or go to one, and the message's bytes themselves. A tensor of the CPU that the message alone refers
/// to is handed over instead (become_copy). A message with tensors that go from a device
/// to the CPU is delivered once they have arrived; later messages may overtake it, but not a cancellation of it. While
/// reading is paused cancellations arrive nevertheless, ahead of the messages that wait, and once more in their place.
/// A started end stays alive until it is closed and its receiver has been notified.
///
/// A message is delivered by one of
///   a thread inside drive() that waits for its own reply, or
///   a thread of the reactor that delivered earlier messages and has kept the end (it is held), or
///   a thread of the reactor to which it is posted.
/// The first two spin if recent waits were short, and are not woken meanwhile: a sender hands the message to the thread
/// that spins (handover_slot). The thread that holds an end may run a handler at the moment: the end is taken from it once
/// it begins to block, when a driver at the other end has waited in vain, or by the monitor after a tick.
class inproc_connection final : public connection,
                                public lingering_connection,
                                public std::enable_shared_from_this<inproc_connection> {
 public:
  /// What an end is called in messages, and how long its threads may spin.
  struct end_settings {
    std::string description;
    std::chrono::nanoseconds max_spin;
  };
  /// Two ends that deliver on `loop`; the descriptions name the other end.
  static std::pair<std::shared_ptr<inproc_connection>, std::shared_ptr<inproc_connection>> make_pair(
      reactor& loop, end_settings first, end_settings second);

  inproc_connection(std::shared_ptr<reactor> loop, end_settings settings);
  /// An end that was never started closes the other one.
  ~inproc_connection() override;

  void start(std::shared_ptr<connection_receiver> receiver) override;
  void send(outgoing_message&& message) noexcept override;
  bool drive(const drive_condition& condition, deadline until) noexcept override;
  void interrupt_drive() noexcept override;
  [[nodiscard]] std::uint64_t unwritten_bytes() const noexcept override {
    return closed_here_.load(std::memory_order_relaxed) ? 0 : sent_->bytes.load(std::memory_order_relaxed);
  }
  bool tell_when_written(std::uint64_t bytes) noexcept override;
  void pause_reading() noexcept override;
  void resume_reading() noexcept override;
  void close(std::exception_ptr reason) noexcept override;
  [[nodiscard]] bool carries_device_tensors() const noexcept override { return true; }
  [[nodiscard]] bool same_process() const noexcept override { return true; }
  [[nodiscard]] std::string_view transport_name() const noexcept override { return "inproc"; }
  [[nodiscard]] std::string description() const override { return description_; }

  // ---- lingering_connection
  bool linger(io_threads& on) noexcept override;
  bool resume_watching(bool now) noexcept override;
  void flush() noexcept override {}  // nothing is held back

 private:
  enum class serving : unsigned char { idle, reactor_thread, held, driver };
  /// The state of one end's inbox that the sender shares.
  struct alignas(64) backlog {
    static constexpr std::uint64_t no_threshold = ~std::uint64_t{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> notify_at{no_threshold};  ///< the sender requests a notification at this many bytes
    /// True once per request, for the caller that finds the threshold reached.
    bool reached() noexcept {
      std::uint64_t at = notify_at.load();
      return at != no_threshold && bytes.load() <= at && notify_at.compare_exchange_strong(at, no_threshold);
    }
  };
  struct delivery : work {
    inproc_connection* end = nullptr;
  };

  /// A message that waits for its tensors, and the messages ordered behind it.
  struct pending_message {
    std::unique_ptr<envelope> first;
    envelope_queue behind;
  };

  static void send_from_devices(outgoing_message&& message, inproc_connection& peer);
  void receive(inbound_message&& message);
  /// Adds it to the inbox. Called with mutex_ held.
  void enqueue(std::unique_ptr<envelope> message);
  /// The next message to deliver. Called with mutex_ held, while there is one.
  std::unique_ptr<envelope> take_next() noexcept;
  /// Delivers the message once the streams have completed.
  void receive_later(inbound_message&& message, const std::vector<stream>& streams);
  void tensors_ready(const std::shared_ptr<pending_message>& which, const std::exception_ptr& failure) noexcept;
  void peer_closed() noexcept;
  void notify_written() noexcept;
  /// Ensures that a thread delivers the pending messages; `elsewhere`: not the current one. Called with mutex_ held.
  void wake(bool elsewhere = false) noexcept;
  /// Delivers until nothing is left or `stop` is met. Called and left with `lock` held.
  void deliver(std::unique_lock<std::mutex>& lock, const drive_condition* stop) noexcept;
  /// After the current thread, of the reactor, has delivered: it holds the end, or no thread serves it. Called with mutex_
  /// held.
  void stop_serving() noexcept;
  /// Has the monitor take the end from a thread that holds it for long. Called with mutex_ not held.
  void tell_monitor() noexcept;
  [[nodiscard]] bool held_here() const noexcept {
    return serving_ == serving::held && holder_ == std::this_thread::get_id();
  }
  /// Spins until there is something to do, the driver is interrupted, or the end is taken from the current thread.
  /// Called with `lock` held. With a message, which was handed over, it is left without the lock: the end cannot be taken
  /// from this thread until slot_.shut(). Without one, it is left with the lock held.
  std::unique_ptr<envelope> spin_for_news(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds budget) noexcept;
  /// Shuts the slot of the thread that holds the end, which the caller then gives to another one; false if that thread has a
  /// message, or delivers one. Called with mutex_ held.
  [[nodiscard]] bool take_from_holder() noexcept;
  /// Takes the end from a thread that holds it and does not come to its messages. Called with mutex_ not held.
  void rescue() noexcept;
  [[nodiscard]] bool nothing_to_do() const noexcept {
    // The receiver is notified of the end only after all earlier messages.
    return inbox_.empty() ? !closed_ || closed_reported_ || !pending_.empty() : paused_ && urgent_.empty();
  }

  const std::shared_ptr<reactor> loop_;
  io_threads* const threads_;  // loop_, if it is the library's own
  const std::string description_;
  const std::shared_ptr<backlog> received_ = std::make_shared<backlog>();
  std::shared_ptr<backlog> sent_ = received_;  // the peer's received_; set together with peer_
  std::weak_ptr<inproc_connection> peer_;      // set once, before this end is visible to other threads

  // What both threads of a message look at lies close together.
  alignas(64) std::mutex mutex_;
  serving serving_ = serving::idle;
  bool closed_ = false;
  bool closed_reported_ = false;
  bool paused_ = false;
  bool interrupted_ = false;
  bool driver_sleeps_ = false;
  bool delivering_ = false;      // the thread that serves is in the receiver: the end cannot be taken from it
  bool driven_ = false;          // drive() was called before
  bool noted_ = false;           // the monitor watches the end
  bool spinner_leaves_ = false;  // the end was taken from a thread that spins and has not seen that yet
  envelope_queue inbox_;
  // While reading is paused, copies of cancellations are delivered ahead: these are of those in the inbox, in order.
  envelope_queue urgent_;
  std::vector<std::shared_ptr<pending_message>> pending_;
  std::condition_variable news_;  // for the driver

  std::shared_ptr<connection_receiver> receiver_;
  std::shared_ptr<inproc_connection> self_;  // from start() until on_closed() has been called
  std::exception_ptr reason_;
  std::thread::id holder_;
  adaptive_spin spin_;
  std::chrono::nanoseconds budget_{0};     // of the thread that holds the end
  clock::time_point last_spin_;            // when the thread that serves began to spin last, or to hold the end
  clock::time_point idle_since_;           // when the reactor thread that served last left
  std::atomic<std::uint32_t> touched_{0};  // how often a thread has held the end
  std::uint32_t seen_touched_ = 0;         // by the monitor
  std::uint32_t drivers_ = 0;              // a sleeping driver yields to another
  clock::time_point driver_asleep_since_;
  std::atomic<bool> closed_here_{false};  // closed at this end: the other end no longer counts its unread bytes
  delivery work_;
  std::shared_ptr<inproc_connection> posted_;  // keeps this alive while work_ is queued
  alignas(64) handover_slot slot_;             // what a spinning thread looks at
};

}  // namespace ferry::inline v0::detail
