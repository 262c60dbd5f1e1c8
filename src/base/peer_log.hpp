#pragma once

// Log lines that another process can cause: limited, so that a peer cannot fill a disk.

#include <exception>
#include <new>
#include <string>
#include <string_view>

#include <ferry/base/ids.hpp>
#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {

/// Whether one more line about `peer` may be logged now: at most 20 in 5 seconds. Lines that were left out are counted,
/// and the count is logged once the 5 seconds are over: by the next call for any peer, or by report_left_out_lines().
/// Of more than 256 peers at once the newest share one limit. Thread-safe.
[[nodiscard]] bool admit_line_about(std::string_view peer) noexcept;

/// Logs the counts of lines that were left out so far, of every peer, and begins anew.
void report_left_out_lines() noexcept;

/// Forgets all peers and counts: a new sink begins with full limits.
void forget_left_out_lines() noexcept;

/// Logs text(), unless the level is off or the limit of `peer` is reached; text() is called only if the line is logged.
template <class Text>
void log_about(worker_id peer, log_level level, const Text& text) noexcept;
template <class Text>
void log_about(std::string_view peer, log_level level, const Text& text) noexcept {
  if (!log_enabled(level) || !admit_line_about(peer)) return;
  try {
    log(level, text());
  } catch (const std::exception& problem) {
    log(level, problem.what());
  }
}

template <class Text>
void log_about(worker_id peer, log_level level, const Text& text) noexcept {
  if (!log_enabled(level)) return;
  try {
    log_about("worker " + std::to_string(peer.value), level, text);
  } catch (const std::bad_alloc&) {
    log(level, "out of memory: a line about a worker was left out");
  }
}

}  // namespace ferry::inline v0::detail
