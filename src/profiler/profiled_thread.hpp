#pragma once

// What the profiler keeps of each thread.

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>

#include <ferry/base/traced_range.hpp>

namespace ferry::inline v0::detail {

/// How a call was made.
enum class profiled_mode : std::uint8_t { sync, async, remote, notify, to_here };

/// A method of a worker, as it is called by another.
struct called_method {
  std::uint64_t method = 0;  ///< its id
  std::int32_t caller = -1;
  std::int32_t peer = -1;
  profiled_mode mode{};
  friend auto operator<=>(const called_method&, const called_method&) = default;
};

class thread_store;

/// One object: finding the variables of a thread would cost as much as much of what is done with them.
struct profiled_thread {
  /// Recordings and names have numbers, by which a thread knows a few of them.
  static constexpr std::size_t known = 4;
  struct known_ring {
    std::uint64_t serial = 0;  // of the recording that it belongs to
    void* ring = nullptr;
  };
  /// The name that a call had last: most calls are like the one before.
  struct named_call {
    std::uint64_t serial = 0;  // of the names that have it
    called_method call;
    const range_description* what = nullptr;
  };

  open_range* innermost = nullptr;  ///< of those that are recorded
  std::uint32_t id = 0;             ///< the system's; 0: it has not been asked
  bool has_ended = false;           ///< its store is gone
  thread_store* store = nullptr;    ///< null: it has none yet, or none any more
  // Numbers that it may give to events: taken from those of the process in blocks, which threads do not share.
  std::uint64_t next_number = 0;
  std::uint64_t end_of_numbers = 0;
  std::array<known_ring, known> rings{};
  std::array<named_call, known> calls{};
};

/// Of the calling thread. A shared library finds it by a call of the loader. (`initial-exec`, without one, would keep programs from
/// loading the library while they run: the loader has little room left then.)
extern constinit thread_local profiled_thread this_profiled_thread;
[[nodiscard]] inline profiled_thread& profiled_thread_here() noexcept { return this_profiled_thread; }

/// The system's number of the thread, which is the calling one.
[[nodiscard]] std::uint32_t ask_thread_number() noexcept;
[[nodiscard]] inline std::uint32_t number_of(profiled_thread& here) noexcept {
  if (here.id == 0) [[unlikely]]
    here.id = ask_thread_number();
  return here.id;
}

void take_event_numbers(profiled_thread& here) noexcept;
/// Unique in the process, so that an event has the same number in all recordings that see it.
[[nodiscard]] inline std::uint64_t new_event_number(profiled_thread& here) noexcept {
  if (here.next_number == here.end_of_numbers) [[unlikely]]
    take_event_numbers(here);
  return here.next_number++;
}
/// Behind each other. Returns the first.
[[nodiscard]] std::uint64_t reserve_event_numbers(std::uint64_t count) noexcept;

}  // namespace ferry::inline v0::detail
