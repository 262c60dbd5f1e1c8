#pragma once

// What the parts of one socket transport (listeners, handshakes, connects) share.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>

#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>

#include <ferry/transport/transport.hpp>

#include "../../base/peer_log.hpp"
#include "acceptor_registry.hpp"

namespace ferry::inline v0::detail {

using stream_socket = asio::generic::stream_protocol::socket;

/// An operation on the control thread. Keeps itself in socket_core::live until it is over.
class control_operation {
 public:
  virtual ~control_operation() = default;
  /// Ends it at once and completes its callback with an error. On the control thread.
  virtual void abort() noexcept = 0;
};

/// What carries the messages of a connection once it is made.
enum class carriage : std::uint8_t { socket, shared_memory };

struct socket_core {
  socket_core(reactor& loop_, asio::io_context& context_, std::string_view name_, carriage carried_by_)
      : loop(loop_), context(context_), transport_name(name_), carried_by(carried_by_) {}

  reactor& loop;
  asio::io_context& context;
  std::string_view transport_name;  ///< a literal
  carriage carried_by;
  acceptor_registry workers;

  // The rest belongs to the control thread.
  bool closed = false;
  std::unordered_map<control_operation*, std::shared_ptr<control_operation>> live;

  /// Logs a warning about peers that have not proved who they are; all of them share one limit.
  template <class Text>
  void warn(const Text& text) const noexcept {
    log_about("unauthenticated connections", log_level::warning, text);
  }
};

}  // namespace ferry::inline v0::detail
