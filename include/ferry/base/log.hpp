#pragma once

// Log and trace hooks. Higher layers and users set the sinks; without a sink, warnings and errors go to stderr.

#include <atomic>
#include <cstdint>
#include <string_view>

namespace ferry::inline v0 {

enum class log_level : int { debug = 0, info = 1, warning = 2, error = 3, off = 4 };

/// Called for every message at or above the level, from any thread, possibly from several at once: also from those that
/// accept connections and read from peers, so it must not block. Must not throw.
using log_sink = void (*)(log_level level, std::string_view text, void* user);

/// Replaces the sink; nullptr restores the one that writes to stderr, which drops and counts lines that stderr does not
/// take at once (a full pipe), shows control characters as '?' and indents the further lines of a text. Thread-safe.
void set_log_sink(log_sink sink, void* user) noexcept;

/// The lowest level that is reported. Default: FERRY_LOG (debug, info, warning, error, off), else warning.
void set_log_level(log_level level) noexcept;
[[nodiscard]] log_level get_log_level() noexcept;
[[nodiscard]] inline bool log_enabled(log_level level) noexcept { return level >= get_log_level(); }

/// Reports one message. Never throws. Format with fmt at the call site, behind log_enabled() where it is hot.
void log(log_level level, std::string_view text) noexcept;

/// One event, for tracers. The strings are valid only during the call.
struct trace_event {
  enum class kind : std::uint8_t { call_begin, call_end, handler_begin, handler_end };
  kind what;
  std::string_view method;
  std::string_view worker;  ///< where it happened
  std::string_view peer;    ///< the other end
  std::uint64_t call_id;
  std::int64_t steady_ns;  ///< std::chrono::steady_clock
};
using trace_sink = void (*)(const trace_event& event, void* user);

/// Replaces the trace sink; nullptr switches tracing off. The old sink may still be running when this returns.
void set_trace_sink(trace_sink sink, void* user) noexcept;

namespace detail {
extern std::atomic<bool> tracing;
void trace(const trace_event& event) noexcept;
}  // namespace detail

[[nodiscard]] inline bool trace_enabled() noexcept { return detail::tracing.load(std::memory_order_relaxed); }

}  // namespace ferry::inline v0
