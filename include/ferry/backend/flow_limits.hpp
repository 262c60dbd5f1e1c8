#pragma once

// Bounds on what is under way between workers (docs/backpressure.md).

#include <cstdint>

namespace ferry::inline v0 {

/// How much of a worker's memory its calls may take, in calls and bytes. A message counts with its frame and its
/// tensors. Bounds on a peer hold for each peer, those on a worker for all its peers together; of the latter a peer may
/// always use fair_calls and fair_bytes, so that a slow peer cannot starve others. A message that is larger than a
/// bound on bytes passes alone. Every bound is at least 1; each worker may have its own.
struct flow_limits {
  static constexpr std::uint64_t fair_calls = 16;
  static constexpr std::uint64_t fair_bytes = std::uint64_t{1} << 20;

  /// Calls that were sent and have not ended. Further ones wait in a queue.
  std::uint64_t calls_per_peer = 4096;
  std::uint64_t calls_per_worker = 65536;
  /// Bytes that the transport has accepted and not yet written. Of requests: above the bound, the next ones wait in a
  /// queue. Of replies: above the bound, no further handler of that caller begins.
  std::uint64_t bytes_per_peer = std::uint64_t{256} << 20;
  std::uint64_t bytes_per_worker = std::uint64_t{1} << 30;

  /// Calls and notifications that wait to be sent; the next one gets errc::resource_exhausted.
  std::uint64_t queued_calls_per_peer = 65536;
  std::uint64_t queued_calls_per_worker = 1048576;
  std::uint64_t queued_bytes_per_peer = std::uint64_t{1} << 30;
  std::uint64_t queued_bytes_per_worker = std::uint64_t{4} << 30;

  /// Requests that have arrived and are not answered. Above the bound, reading from that peer pauses.
  std::uint64_t served_calls_per_peer = 16384;
  std::uint64_t served_calls_per_worker = 262144;
  std::uint64_t served_bytes_per_peer = std::uint64_t{1} << 30;
  std::uint64_t served_bytes_per_worker = std::uint64_t{4} << 30;

  /// Throws errc::invalid_argument, naming the bound.
  void check() const;

  friend bool operator==(const flow_limits&, const flow_limits&) = default;
};

}  // namespace ferry::inline v0
