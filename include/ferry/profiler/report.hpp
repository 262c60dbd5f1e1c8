#pragma once

// Profiles as text: a trace for viewers, and a table.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::profiler {

struct trace_options {
  /// Events of a worker whose clock is known less well are refused: arrows that seem to go back in time mislead.
  std::chrono::nanoseconds largest_uncertainty = std::chrono::milliseconds(10);
};

/// In the format of Chrome's traces (JSON), which Perfetto, chrome://tracing and Speedscope show: a process for each worker, a track
/// for each thread, arrows from calls to their handlers and back. Throws errc::invalid_argument, naming the worker, if a clock is
/// known less well than the options want.
[[nodiscard]] std::string chrome_trace(const profile& from, const trace_options& how = {});

/// What an event of a trace may say beside its name and times.
struct metadata_key {
  std::string_view name;
  std::string_view type;  ///< "integer" or "string"
  std::string_view meaning;
};
/// All of them; a trace has no others.
[[nodiscard]] const std::vector<metadata_key>& metadata_keys();

/// Where the time of one worker went, as far as the profile saw it.
struct worker_share {
  std::int32_t node = -1;
  std::int64_t compute_ns = 0;  ///< in handlers, ranges, operations and passes, and not in what these wait for
  /// Of calls that its threads waited for: under way, encoded and decoded; of collectives from the time on when all members had called
  /// them. Of asynchronous ones as far as a thread waits for a future that they end in; where none does, as in coroutines, the time in
  /// which nothing else was recorded within the same event.
  std::int64_t communication_ns = 0;
  /// Of the same calls: their handlers run; of the same collectives: members have not called them. And of threads that wait for what
  /// no call or collective explains.
  std::int64_t waiting_ns = 0;
  std::int64_t queueing_ns = 0;  ///< requests at this worker waited until their handlers began
  std::int64_t idle_ns = 0;      ///< of the profile's time: nothing of it ran at this worker
  /// For how long another one waited in collectives for this worker alone: after all but this one had called them. Of those that
  /// waited, the longest; of a collective that failed, nothing.
  std::int64_t held_up_ns = 0;
  std::uint64_t events = 0;
};

struct summary {
  std::int64_t length_ns = 0;
  std::vector<worker_share> workers;  ///< by id
  /// The id of the worker that computed longest; -1: none did.
  std::int32_t straggler = -1;
};

[[nodiscard]] summary summarise(const profile& from);
enum class path_time : std::uint8_t {
  compute,        ///< in handlers, ranges, operations and passes
  communication,  ///< of a call: under way, encoded and decoded; of a collective: all members had called it
  queueing,       ///< a request waited at its callee until its handler began
  waiting,        ///< a thread waited, and no event says for what; of collectives: for members that had not called them
};

struct path_step {
  std::uint64_t event = 0;  ///< its number; of queueing: that of the handler
  std::int32_t node = -1;
  path_time what{};
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;
  [[nodiscard]] std::int64_t duration_ns() const noexcept { return to_ns - from_ns; }
};

/// What an event took its time for, at all workers: steps that follow each other without gaps from its beginning to its end, and
/// without which it would have been shorter. Of parts that ran at the same time the one that ended last counts: that the event waited
/// for it is taken for granted, but for asynchronous calls and collectives that ended while their thread, which waits for futures, did
/// something else. Throws errc::invalid_argument if there is no event of that number.
[[nodiscard]] std::vector<path_step> critical_path(const profile& from, std::uint64_t of);
/// Of the events that are part of no other, the first of the longest; null: there are none. Ranges, passes, operations and calls come
/// before handlers, whose calls were made elsewhere, these before collectives, and these before waits.
[[nodiscard]] const event* longest_event(const profile& from) noexcept;

/// Three tables for people: the workers, events by name with their number, total, own and longest times, and where the time of the
/// longest event went.
[[nodiscard]] std::string table(const profile& from, std::size_t rows = 30);

}  // namespace ferry::inline v0::profiler
