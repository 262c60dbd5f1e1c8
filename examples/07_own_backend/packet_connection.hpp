#pragma once

// Messages over a connected packet socket.

#include <array>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <ferry/transport/connection.hpp>
#include <ferry/transport/reactor.hpp>
#include <ferry/wire/limits.hpp>

/// Owns a file descriptor.
class descriptor {
 public:
  explicit descriptor(int number) noexcept : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&&) = delete;
  ~descriptor() { close(); }
  [[nodiscard]] int get() const noexcept { return number_; }
  void close() noexcept {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_;
};

/// The most that one packet carries; below the default of net.core.wmem_max.
inline constexpr std::size_t largest_packet = std::size_t{64} * 1024;

/// Puts the packets of a message together again. Every message begins a packet of its own.
class message_assembler {
 public:
  explicit message_assembler(const ferry::wire_limits& limits) : limits_(limits) {}
  /// True if `packet` completes a message, which then is in `whole`. Throws what the checks of the wire floor throw.
  bool add(std::span<const std::byte> packet, ferry::inbound_message& whole);

 private:
  void take_body();
  void add_to_tensors(std::span<const std::byte> bytes);

  const ferry::wire_limits limits_;
  bool begun_ = false;
  bool body_done_ = false;
  std::vector<std::byte> body_;  // grows with what arrives, not with what the header promises
  std::size_t tensor_ = 0;       // being filled
  std::size_t filled_ = 0;       // of it
  ferry::inbound_message message_;
};

/// Watched from start() on; the watch keeps it alive until it is closed and its receiver has been told.
class packet_connection final : public ferry::connection,
                                public ferry::descriptor_handler,
                                public std::enable_shared_from_this<packet_connection> {
 public:
  packet_connection(ferry::reactor& loop, descriptor socket, std::string description, const ferry::wire_limits& limits);

  void start(std::shared_ptr<ferry::connection_receiver> receiver) override;
  void send(ferry::outgoing_message&& message) noexcept override;
  void close(std::exception_ptr reason) noexcept override;
  [[nodiscard]] std::string_view transport_name() const noexcept override { return "packet"; }
  [[nodiscard]] std::string description() const override { return description_; }

  void on_ready(ferry::readiness ready) noexcept override;

 private:
  struct turn : ferry::work {
    std::shared_ptr<packet_connection> of;  // set while it is queued
  };
  // All of these with mutex_ held.
  void ask_for_a_turn() noexcept;
  void write() noexcept;
  void end(std::exception_ptr reason) noexcept;

  void serve(std::unique_lock<std::mutex>& lock) noexcept;
  bool read(std::unique_lock<std::mutex>& lock);

  ferry::reactor& loop_;
  const std::string description_;

  std::mutex mutex_;  // guards what follows, except what only the thread that is serving_ uses
  descriptor socket_;
  ferry::watch_id watch_ = ferry::watch_id::none;
  std::shared_ptr<ferry::connection_receiver> receiver_;
  std::deque<ferry::outgoing_message> outbox_;
  std::size_t written_ = 0;  // of the first message in the outbox
  bool serving_ = false;     // a thread is inside serve(): events of one descriptor may come on several at once
  bool again_ = false;       // something has happened since it looked
  bool closing_ = false;     // close() was called: what is in the outbox is still written
  bool ended_ = false;
  std::exception_ptr reason_;
  turn turn_;

  message_assembler assembler_;  // of the serving thread, as is the next
  std::vector<std::byte> packet_ = std::vector<std::byte>(largest_packet);
};
