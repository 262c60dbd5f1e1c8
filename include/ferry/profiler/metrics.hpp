#pragma once

// Counters and latencies of the calls of a worker, by method and peer, that are cheap enough to stay on: docs/metrics.md.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/profiler/latency_histogram.hpp>

namespace ferry::inline v0 {
class worker;

namespace profiler {

enum class call_side : std::uint8_t {
  client,  ///< calls that the worker makes
  server,  ///< requests that it serves
};
/// "client", "server"
std::string_view to_string(call_side side) noexcept;

/// What a worker has counted of one method and one peer.
struct call_metrics {
  std::string worker = {};  ///< whose calls these are
  call_side side{};
  std::string method = {};
  std::string peer = {};  ///< the callee's name, or the caller's

  std::uint64_t calls = 0;    ///< sent or received, those without a reply not included
  std::uint64_t one_way = 0;  ///< the same without a reply
  std::uint64_t not_sent =
      0;  ///< calls that could not be sent: no way to the peer, a limit, a record that could not be added
  /// Replies that came after their calls had ended, by timeout for example; of method `unknown` where that is no longer known.
  std::uint64_t late_replies = 0;
  std::uint64_t ended = 0;       ///< of `calls`, and of the one-way requests of a server
  std::int64_t in_flight = 0;    ///< that have not ended
  std::uint64_t sent_bytes = 0;  ///< of messages, with their headers and tensors
  std::uint64_t received_bytes = 0;
  /// Calls: until the reply was there, or the error. Requests: of the handler, until its answer was made, also where that was a
  /// future's; those whose handlers did not begin are not in it.
  latency_histogram duration = {};
  latency_histogram queued = {};  ///< requests: from their arrival until their handler began

  /// What ended with anything but a value, or could not be sent, by its code; those that did not happen are not in it. Exceptions of
  /// methods are errc::remote_exception.
  std::vector<std::pair<errc, std::uint64_t>> errors = {};
  [[nodiscard]] std::uint64_t errors_of(errc code) const noexcept;
  [[nodiscard]] std::uint64_t failed() const noexcept;
  [[nodiscard]] std::uint64_t timed_out() const noexcept { return errors_of(errc::rpc_timeout); }
  [[nodiscard]] std::uint64_t cancelled() const noexcept { return errors_of(errc::call_cancelled); }

  /// Adds the counts of the other one; the names stay.
  call_metrics& merge(const call_metrics& other);
  /// Takes away what was counted before. `in_flight` stays.
  call_metrics& subtract(const call_metrics& earlier);
};

/// What a worker has counted of its connections to one peer, by whichever of both they were opened.
struct peer_metrics {
  std::string worker = {};
  std::string peer = {};
  std::uint64_t connections_opened = 0;
  std::uint64_t connections_lost = 0;  ///< closed, by either end or the network
  std::uint64_t reconnects = 0;        ///< of the opened ones, those that came after one was lost

  /// Adds the counts of the other one; the names stay.
  peer_metrics& merge(const peer_metrics& other) noexcept;
  /// Takes away what was counted before.
  peer_metrics& subtract(const peer_metrics& earlier) noexcept;
};

/// A figure of worker::debug_info() that is a number.
struct worker_figure {
  std::string worker;
  std::string name;  ///< "agent.queued_calls"
  double value = 0;
};

/// Metrics at one moment, or of a span of time. A value.
struct metrics_snapshot {
  std::vector<call_metrics> calls;      ///< by worker, side, method and peer, in this order
  std::vector<peer_metrics> peers;      ///< by worker and peer; those that connections were opened to, or lost
  std::vector<worker_figure> figures;   ///< by worker and name
  std::uint64_t folded_series = 0;      ///< methods and peers that metrics_options::max_series left no room for
  std::uint64_t lost_events = 0;        ///< that were not counted, since there was no memory
  std::chrono::nanoseconds duration{};  ///< how long these metrics were recorded

  /// Adds another one: of another worker, process or time. Rows of the same worker, side, method and peer become one, and so do
  /// figures of one worker and name: they are added. The longer duration remains. Associative.
  metrics_snapshot& merge(const metrics_snapshot& other);
  /// What happened since an earlier snapshot of the same metrics, and how long that took; figures, and calls in flight, stay as they
  /// are now.
  metrics_snapshot& subtract(const metrics_snapshot& earlier);

  /// All rows of that method and peer as one, of whatever worker; an empty name stands for all of them.
  [[nodiscard]] call_metrics total(call_side side, std::string_view method = {}, std::string_view peer = {}) const;
};

/// The snapshot in the text format of Prometheus, version 0.0.4. docs/metrics.md has the names.
[[nodiscard]] std::string prometheus_text(const metrics_snapshot& of);

struct metrics_options {
  /// Combinations of side, method and peer that have rows of their own. Calls of further ones are counted as method "other" of peer
  /// "other", so that the amount of metrics is bounded whatever peers call.
  std::size_t max_series = 512;
};

/// Counts the calls of a worker while it exists: those made and received from its construction on.
///
///     const ferry::profiler::metrics recorded(self);
///     ...
///     std::cout << ferry::profiler::prometheus_text(recorded.read());
///
/// A worker has one at a time. It may outlive its worker: then it has the last counts, and no figures.
class metrics {
 public:
  /// Of the process's current worker. Throws errc::not_initialized.
  explicit metrics(const metrics_options& how = {});
  /// Throws errc::invalid_argument if the worker has one already, or for a bound of zero, errc::not_initialized once it is shut down.
  explicit metrics(const worker& of, const metrics_options& how = {});
  ~metrics();
  metrics(const metrics&) = delete;
  metrics& operator=(const metrics&) = delete;

  /// What was counted since it was constructed. Thread-safe; does not hold up calls.
  [[nodiscard]] metrics_snapshot read() const;

 private:
  friend class metrics_server;
  struct state;
  std::shared_ptr<const state> state_;
};

}  // namespace profiler
}  // namespace ferry::inline v0
