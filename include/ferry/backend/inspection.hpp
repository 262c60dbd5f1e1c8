#pragma once

// What a backend tells for diagnostics. A backend may leave out all of it.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/backend/worker_info.hpp>
#include <ferry/base/time.hpp>
#include <ferry/base/work.hpp>
#include <ferry/device/device.hpp>
#include <ferry/transport/channel.hpp>

namespace ferry::inline v0 {

/// How far a call had come when it failed.
enum class call_phase : std::uint8_t { connecting, queued, waiting_for_reply };
std::string_view to_string(call_phase phase) noexcept;

/// A call that has not ended, at one moment.
struct open_call {
  std::uint64_t id = 0;
  std::uint64_t method = 0;
  worker_info peer = {};
  call_phase phase{};
  clock::time_point began = {};
  deadline until = {};
  std::uint64_t bytes = 0;
  std::string transport = {};  ///< of the connection; empty: none is open
  std::string route = {};      ///< its description
};

/// How tensors on one device of this worker reach a device of another worker, in requests or responses.
struct device_route {
  device from = {};
  device to = {};
  std::string channel = {};                  ///< its name; empty: there is none
  std::vector<rejected_route> skipped = {};  ///< better channels, or all if there is none, and why each is not used
};

/// How messages reach a worker, a snapshot.
struct route_info {
  std::string transport = {};    ///< of the connection for calls to it; empty: none is open
  std::string description = {};  ///< of the connection
  /// Better transports, and why each is not used; without a connection the addresses that were tried last, and why each failed.
  std::vector<rejected_route> skipped = {};
  std::vector<device_route> devices =
      {};  ///< from CPU to CPU, and for each entry of the device maps; empty without a connection
};
/// Multi-line text for diagnostics.
[[nodiscard]] std::string to_string(const route_info& route);

/// Traffic between this worker and one peer, in both directions, since the start.
struct peer_traffic {
  worker_info peer = {};
  std::uint64_t calls = 0;           ///< to the peer, one-way ones included
  std::uint64_t errors = 0;          ///< of these, ended without a value
  std::uint64_t served = 0;          ///< requests of the peer
  std::uint64_t bytes_sent = 0;      ///< requests and replies, headers and tensors included
  std::uint64_t bytes_received = 0;  ///< the same
};

/// Counters of an agent; each is a snapshot.
struct agent_counters {
  std::uint64_t client_active_calls = 0;  ///< sent, not yet completed
  std::uint64_t requests_sent = 0;        ///< one-way ones included, on connections that are open
  std::uint64_t late_replies = 0;         ///< arrived after their call had ended, and were dropped
  std::uint64_t lost_workers = 0;         ///< of the group, up to now
  std::uint64_t queued_calls = 0;         ///< calls and notifications that wait to be sent (flow_limits)
  std::uint64_t queued_bytes = 0;         ///< of the queued ones
  std::uint64_t unwritten_bytes = 0;      ///< of requests that the transports have accepted and not yet written
  std::uint64_t served_bytes = 0;         ///< of requests that have arrived and are not answered
  std::uint64_t unwritten_replies = 0;    ///< bytes that the transports have accepted and not yet written
  std::uint64_t held_handlers = 0;        ///< waiting until answers to their caller are written
  std::uint64_t paused_connections = 0;   ///< not read until requests are answered
};

/// All members are thread-safe; each result is a snapshot. The defaults tell nothing.
class agent_inspection {
 public:
  agent_inspection() = default;
  agent_inspection(const agent_inspection&) = delete;
  agent_inspection& operator=(const agent_inspection&) = delete;
  virtual ~agent_inspection() = default;

  [[nodiscard]] virtual agent_counters counters() const noexcept { return {}; }
  /// The calls of this worker that have not ended.
  /// With their ids as on the wire: without them, references in replies that take more than four seconds to arrive are lost.
  [[nodiscard]] virtual std::vector<open_call> open_calls() const { return {}; }
  /// Calls `visit` for every request that is between begin_call and end_call. It must neither block nor call the agent.
  using request_visitor = std::function<void(const worker_info& from, std::uint64_t call_id, stoppable& running)>;
  virtual void visit_requests(const request_visitor& visit) const { (void)visit; }
  /// Time since `peer` was last heard from, accurate to about a heartbeat; empty if it is not monitored: it runs in
  /// this process, no connection to it was ever open, or there are no heartbeats.
  [[nodiscard]] virtual std::optional<std::chrono::nanoseconds> silence(worker_id peer) const noexcept {
    (void)peer;
    return std::nullopt;
  }
  /// By id; without peers that this worker has had no traffic with.
  [[nodiscard]] virtual std::vector<peer_traffic> traffic() const { return {}; }
  /// Throws errc::unknown_worker.
  [[nodiscard]] virtual route_info route(worker_id to) const {
    (void)to;
    return {};
  }
};

}  // namespace ferry::inline v0
