#pragma once

// Connections between workers of one process: messages are handed over in memory.

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <ferry/transport/connection.hpp>

#include "io_threads.hpp"

namespace ferry::inline v0::detail {

/// One end. Values stay values: the receiver gets copies of the tensors, made inside send(), and the message's bytes
/// themselves. Once started, an end lives until it is closed and its receiver has been told.
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
  void close(std::exception_ptr reason) noexcept override;
  [[nodiscard]] bool same_process() const noexcept override { return true; }
  [[nodiscard]] std::string_view transport_name() const noexcept override { return "inproc"; }
  [[nodiscard]] std::string description() const override { return description_; }

 private:
  enum class serving : unsigned char { nobody, reactor_thread, driver };
  struct delivery : work {
    inproc_connection* end = nullptr;
  };

  void receive(inbound_message&& message);
  void peer_closed() noexcept;
  /// Sees to it that somebody delivers what is there. Called with mutex_ held.
  void wake() noexcept;
  /// Delivers until nothing is left or `stop` is met. Called and left with `lock` held.
  void deliver(std::unique_lock<std::mutex>& lock, const drive_condition* stop) noexcept;
  [[nodiscard]] bool nothing_to_do() const noexcept { return inbox_.empty() && (!closed_ || told_); }

  const std::shared_ptr<io_threads> loop_;
  const std::string description_;
  std::weak_ptr<inproc_connection> peer_;  // set once, before anybody else sees this end

  std::mutex mutex_;
  std::condition_variable news_;  // for the driver
  std::deque<inbound_message> inbox_;
  std::shared_ptr<connection_receiver> receiver_;
  std::shared_ptr<inproc_connection> self_;  // from start() until the receiver has been told of the end
  std::exception_ptr reason_;
  serving serving_ = serving::nobody;
  bool interrupted_ = false;
  bool closed_ = false;
  bool told_ = false;
  delivery work_;
  std::shared_ptr<inproc_connection> posted_;  // keeps this alive while work_ is queued
};

}  // namespace ferry::inline v0::detail
