#pragma once

// Log lines that another process can cause: limited, so that a peer cannot fill a disk.

#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/base/ids.hpp>
#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {

/// At most `most` lines about one peer in any period of `period`, wherever it begins. Not thread-safe; the caller says
/// what time it is.
class line_limits {
 public:
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr std::size_t most = 20;
  static constexpr std::chrono::seconds period{5};
  static constexpr std::size_t most_peers = 256;  ///< of more at once the newest share one limit

  /// Lines about a peer that were left out.
  struct count {
    std::string peer;
    std::size_t lines = 0;
  };

  /// Whether one more line about `peer` may be logged now. Adds to `due` the counts that are to be logged first: a count
  /// is due once after a period, and is itself one of the lines about its peer. Throws std::bad_alloc.
  [[nodiscard]] bool admit(std::string_view peer, time_point now, std::vector<count>& due);
  /// All counts, due or not, and begins anew. Throws std::bad_alloc.
  [[nodiscard]] std::vector<count> take_all();
  void forget() noexcept { of_peer_.clear(); }

 private:
  struct lines {
    std::array<time_point, most> logged;  // the last ones, as a ring
    std::size_t next = 0;                 // in the ring: the oldest one, if it is full
    std::size_t size = 0;
    std::size_t left_out = 0;
    time_point left_out_since;

    bool take_place(time_point now) noexcept;
    [[nodiscard]] bool is_over(time_point now) const noexcept;
  };
  using table = std::map<std::string, lines, std::less<>>;
  static void take_due(table::value_type& which, time_point now, std::vector<count>& due);

  table of_peer_;
  time_point next_sweep_;
};

/// Whether one more line about `peer` may be logged now, by the process's line_limits. Lines that were left out are
/// counted, and the count is logged once 5 seconds are over: by the next call for any peer, or by
/// report_left_out_lines(). Thread-safe.
[[nodiscard]] bool admit_line_about(std::string_view peer) noexcept;

/// Logs the counts of lines that were left out so far, of every peer, and begins anew.
void report_left_out_lines() noexcept;

/// Forgets all peers and counts: a new sink begins with full limits.
void forget_left_out_lines() noexcept;

/// Cuts a text of more than `most` bytes, and says how many are left out. Throws std::bad_alloc.
[[nodiscard]] std::string shortened(std::string text, std::size_t most);
/// The bytes of a line that another process can cause.
inline constexpr std::size_t longest_line_about_peers = 4096;

/// Logs text(), unless the level is off or the limit of `peer` is reached; text() is called only if the line is logged. Of a long
/// text the beginning.
template <class Text>
void log_about(worker_id peer, log_level level, const Text& text) noexcept;
template <class Text>
void log_about(std::string_view peer, log_level level, const Text& text) noexcept {
  if (!log_enabled(level) || !admit_line_about(peer)) return;
  try {
    log(level, shortened(text(), longest_line_about_peers));
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
