#pragma once

// Connections between workers of one process: messages are handed over in memory.

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

#include "../reactor/io_threads.hpp"

namespace ferry::inline v0::detail {

/// One end. Values stay values: the receiver gets copies of the tensors, made inside send(), or queued there if they are on
/// devices or go there, and the message's bytes themselves. A message with tensors that come from a device to the CPU is
/// delivered once they are there, which later ones may overtake; a cancellation of it may not. Once started, an end lives until it is closed and its receiver has been told.
class inproc_connection final : public connection, public std::enable_shared_from_this<inproc_connection> {
 public:
  /// Two ends that deliver on `loop`; the descriptions name the other end.
  static std::pair<std::shared_ptr<inproc_connection>, std::shared_ptr<inproc_connection>> make_pair(
      reactor& loop, std::string first_sees, std::string second_sees);

  inproc_connection(std::shared_ptr<io_threads> loop, std::string description);
  /// An end that was never started closes the other one.
  ~inproc_connection() override;

  void start(std::shared_ptr<connection_receiver> receiver) override;
  void send(outgoing_message&& message) noexcept override;
  bool drive(const drive_condition& condition, deadline until) noexcept override;
  void interrupt_drive() noexcept override;
  [[nodiscard]] std::uint64_t unwritten_bytes() const noexcept override {
    return given_up_.load(std::memory_order_relaxed) ? 0 : sent_->bytes.load(std::memory_order_relaxed);
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
  /// What waits in the inbox of one end.
  struct backlog {
    static constexpr std::uint64_t never_told = ~std::uint64_t{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> tell_at{never_told};  ///< the sender wants to know when there is no more
    /// True once, for the first thread that finds it so.
    bool reached() noexcept {
      std::uint64_t at = tell_at.load();
      return at != never_told && bytes.load() <= at && tell_at.compare_exchange_strong(at, never_told);
    }
  };
  struct delivery : work {
    inproc_connection* end = nullptr;
  };

  /// What follows a message that waits for its tensors.
  struct pending_message {
    inbound_message message;
    std::vector<inbound_message> behind;
  };

  static void send_from_devices(outgoing_message&& message, inproc_connection& peer);
  void receive(inbound_message&& message);
  /// The same once the streams are done.
  void receive_later(inbound_message&& message, const std::vector<stream>& streams);
  void tensors_ready(const std::shared_ptr<pending_message>& which, const std::exception_ptr& failure) noexcept;
  void peer_closed() noexcept;
  void tell_written() noexcept;
  /// Ensures that a thread delivers what is there. Called with mutex_ held.
  void wake() noexcept;
  /// Delivers until nothing is left or `stop` is met. Called and left with `lock` held.
  void deliver(std::unique_lock<std::mutex>& lock, const drive_condition* stop) noexcept;
  [[nodiscard]] bool nothing_to_do() const noexcept {
    // The end is told after what came before it.
    return inbox_.empty() ? !closed_ || told_ || !pending_.empty() : paused_;
  }

  const std::shared_ptr<io_threads> loop_;
  const std::string description_;
  const std::shared_ptr<backlog> received_ = std::make_shared<backlog>();
  std::shared_ptr<backlog> sent_ = received_;  // of the peer; set with the next one
  std::weak_ptr<inproc_connection> peer_;      // set once, before anybody else sees this end

  std::mutex mutex_;
  std::condition_variable news_;  // for the driver
  std::deque<inbound_message> inbox_;
  std::vector<std::shared_ptr<pending_message>> pending_;
  std::shared_ptr<connection_receiver> receiver_;
  std::shared_ptr<inproc_connection> self_;  // from start() until the receiver has been told of the end
  std::exception_ptr reason_;
  serving serving_ = serving::idle;
  bool interrupted_ = false;
  bool closed_ = false;
  bool told_ = false;
  bool paused_ = false;
  std::atomic<bool> given_up_{false};  // closed at this end: what the other one has yet to read is its own
  delivery work_;
  std::shared_ptr<inproc_connection> posted_;  // keeps this alive while work_ is queued
};

}  // namespace ferry::inline v0::detail
