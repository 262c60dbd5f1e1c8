#pragma once

// Connections between workers of one process: messages are passed in memory.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ferry/transport/connection.hpp>
#include <ferry/transport/reactor.hpp>

namespace ferry::inline v0::detail {

/// One end. Value semantics are kept: the receiver gets copies of the tensors, made inside send(), or queued there if
/// they are on devices or go to one, and the message's bytes themselves. A message with tensors that go from a device
/// to the CPU is delivered once they have arrived; later messages may overtake it, but not a cancellation of it. While
/// reading is paused cancellations arrive nevertheless, ahead of the messages that wait, and once more in their place.
/// A started end stays alive until it is closed and its receiver has been notified.
class inproc_connection final : public connection, public std::enable_shared_from_this<inproc_connection> {
 public:
  /// Two ends that deliver on `loop`; the descriptions name the other end.
  static std::pair<std::shared_ptr<inproc_connection>, std::shared_ptr<inproc_connection>> make_pair(
      reactor& loop, std::string first_sees, std::string second_sees);

  inproc_connection(std::shared_ptr<reactor> loop, std::string description);
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

 private:
  enum class serving : unsigned char { idle, reactor_thread, driver };
  /// The state of one end's inbox that the sender shares.
  struct backlog {
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
    inbound_message message;
    std::vector<inbound_message> behind;
  };

  static void send_from_devices(outgoing_message&& message, inproc_connection& peer);
  void receive(inbound_message&& message);
  /// Adds it to the inbox. Called with mutex_ held.
  void enqueue(inbound_message&& message);
  /// The next message to deliver. Called with mutex_ held, while there is one.
  inbound_message take_next() noexcept;
  /// Delivers the message once the streams have completed.
  void receive_later(inbound_message&& message, const std::vector<stream>& streams);
  void tensors_ready(const std::shared_ptr<pending_message>& which, const std::exception_ptr& failure) noexcept;
  void peer_closed() noexcept;
  void notify_written() noexcept;
  /// Ensures that a thread delivers the pending messages. Called with mutex_ held.
  void wake() noexcept;
  /// Delivers until nothing is left or `stop` is met. Called and left with `lock` held.
  void deliver(std::unique_lock<std::mutex>& lock, const drive_condition* stop) noexcept;
  [[nodiscard]] bool nothing_to_do() const noexcept {
    // The receiver is notified of the end only after all earlier messages.
    return inbox_.empty() ? !closed_ || closed_reported_ || !pending_.empty() : paused_ && urgent_.empty();
  }

  const std::shared_ptr<reactor> loop_;
  const std::string description_;
  const std::shared_ptr<backlog> received_ = std::make_shared<backlog>();
  std::shared_ptr<backlog> sent_ = received_;  // the peer's received_; set together with peer_
  std::weak_ptr<inproc_connection> peer_;      // set once, before this end is visible to other threads

  std::mutex mutex_;
  std::condition_variable news_;  // for the driver
  std::deque<inbound_message> inbox_;
  // While reading is paused, copies of cancellations are delivered ahead: these are of those in the inbox, in order.
  std::deque<inbound_message> urgent_;
  std::vector<std::shared_ptr<pending_message>> pending_;
  std::shared_ptr<connection_receiver> receiver_;
  std::shared_ptr<inproc_connection> self_;  // from start() until on_closed() has been called
  std::exception_ptr reason_;
  serving serving_ = serving::idle;
  bool interrupted_ = false;
  bool closed_ = false;
  bool closed_reported_ = false;
  bool paused_ = false;
  std::atomic<bool> closed_here_{false};  // closed at this end: the other end no longer counts its unread bytes
  delivery work_;
  std::shared_ptr<inproc_connection> posted_;  // keeps this alive while work_ is queued
};

}  // namespace ferry::inline v0::detail
