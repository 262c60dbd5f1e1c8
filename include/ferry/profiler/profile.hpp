#pragma once

// What a profiler has recorded. docs/profiling.md shows how to read it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/base/ids.hpp>
#include <ferry/base/traced_range.hpp>
#include <ferry/device/device.hpp>

namespace ferry::inline v0::profiler {

/// Something that began and ended. Times are those of the steady clock of the worker that the profile belongs to.
struct event {
  /// A call: "rpc_sync#f(worker0 -> worker1)". An event of the callee: "<name of the call>#remote_op: <its name there>", and so on
  /// for calls that handlers make.
  std::string name;
  range_kind kind{};
  std::int32_t node = -1;    ///< the id of the worker where it ran
  bool remote = false;       ///< came with the reply to a call
  bool failed = false;       ///< ended with an exception or an error
  std::uint32_t thread = 0;  ///< of the system, where it ended
  /// Where it began, if that was another one, as of asynchronous calls and collectives, and of some handlers; 0: the same.
  std::uint32_t began_thread = 0;
  std::uint64_t number = 0;  ///< unique in the profile, from 1
  std::uint64_t parent = 0;  ///< the number of the event that it is part of; 0: none
  std::int64_t began_ns = 0;
  std::int64_t ended_ns = 0;
  std::int32_t peer = -1;  ///< calls: the id of the worker that is called; handlers: of the one that calls
  /// Calls that were answered, and handlers: a number that the call has between these two workers, at the same time for no other.
  /// Collectives: a number that it has at all members. Zero: not known, as of all calls and handlers that came with replies.
  std::uint64_t call = 0;
  std::int64_t queued_ns = 0;       ///< handlers: from the arrival of the request until it began
  std::int64_t uncertainty_ns = 0;  ///< remote events: how far off both times may be, together
  std::string shapes = {};          ///< of the inputs of an operation, if asked for: "[[2, 3], [3]]"
  std::int64_t bytes = -1;          ///< of the tensors that an operation made, if asked for; otherwise -1
  std::string error = {};           ///< what it ended with, as far as it is known
  /// Of an operation, if asked for: the device that it queued work on, and how long that took there, by the device's own clock.
  /// Of several streams, the first. No time: the device has not said within options::device_wait, or never will (it has failed).
  std::optional<ferry::device> device = {};
  std::optional<std::chrono::nanoseconds> device_time = {};

  [[nodiscard]] std::int64_t duration_ns() const noexcept { return ended_ns - began_ns; }
  [[nodiscard]] std::uint32_t thread_of_begin() const noexcept { return began_thread == 0 ? thread : began_thread; }

  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, kind, node, remote, failed, thread, began_thread, number, parent, began_ns, ended_ns, queued_ns,
            uncertainty_ns, shapes, bytes, error, peer, call);
    std::int64_t place = device ? static_cast<std::int64_t>(device->kind) << 32 | device->index : -1;
    std::int64_t time = device_time ? device_time->count() : -1;
    archive(place, time);
    if constexpr (Archive::is_loading::value) {
      device.reset();
      device_time.reset();
      if (place < 0 || place >> 32 > 255) return;
      device = ferry::device{static_cast<device_kind>(place >> 32), static_cast<int>(place & 0x7fffffff)};
      if (time >= 0) device_time = std::chrono::nanoseconds(time);
    }
  }
};

/// How the clock of another worker was related to this one's: from the call with the shortest way there and back.
struct clock_offset {
  std::int32_t node = -1;
  std::int64_t offset_ns = 0;  ///< that worker's clock minus this one's
  std::int64_t uncertainty_ns =
      0;                    ///< the offset is right within this much, whatever share of the way each direction took
  std::uint64_t calls = 0;  ///< that were looked at

  template <class Archive>
  void serialize(Archive& archive) {
    archive(node, offset_ns, uncertainty_ns, calls);
  }
};

struct profile {
  std::int32_t node = -1;  ///< the worker whose clock it has
  std::int64_t began_ns = 0;
  std::int64_t ended_ns = 0;
  std::vector<event> events;         ///< by their beginning
  std::vector<clock_offset> clocks;  ///< of workers that were called directly, by id
  std::vector<std::string> workers;  ///< names by id, as far as calls have shown them
  std::uint64_t lost = 0;            ///< events that there was no place for
  std::uint64_t unfinished = 0;      ///< events that had begun and not ended

  /// The first event of exactly that name; null: there is none.
  [[nodiscard]] const event* find(std::string_view name) const noexcept;
  /// How many events have that name.
  [[nodiscard]] std::size_t count(std::string_view name) const noexcept;
  [[nodiscard]] const event* find(std::uint64_t number) const noexcept;
  /// The events of which `of` is the parent, by their beginning.
  [[nodiscard]] std::vector<const event*> children(const event& of) const;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(node, began_ns, ended_ns, events, clocks, workers, lost, unfinished);
  }
};

}  // namespace ferry::inline v0::profiler
