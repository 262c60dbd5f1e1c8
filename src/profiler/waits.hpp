#pragma once

// Which asynchronous calls and collectives of a profile threads have waited for.

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::detail {

/// How an event held up the code that has begun it.
enum class hold : std::uint8_t {
  whole,    ///< its thread ran it, or waited in it: it is no asynchronous one
  suspend,  ///< nothing ran meanwhile but what was recorded, as of coroutines: no thread of it waits in futures
  awaited,  ///< a thread waited for a future when it ended
  none,     ///< it ended beside the work of its thread, which waits for other futures
};

/// Of the events of one profile, which must outlive it, and stay where they are.
class wait_index {
 public:
  explicit wait_index(const profiler::profile& from);

  [[nodiscard]] hold hold_of(const profiler::event& which) const { return of(which).how; }
  /// The wait in which an awaited one ended; else null.
  [[nodiscard]] const profiler::event* wait_of(const profiler::event& which) const { return of(which).in; }
  /// The number of the event that it was done for: where it was waited for, or its parent, without waits and what it has outlived.
  /// 0: none.
  [[nodiscard]] std::uint64_t owner_of(const profiler::event& which) const;

 private:
  using thread_key = std::pair<std::int32_t, std::uint32_t>;  // worker, thread
  struct held {
    hold how = hold::whole;
    const profiler::event* in = nullptr;
  };
  [[nodiscard]] held of(const profiler::event& which) const {
    const auto found = asynchronous_.find(&which);
    return found == asynchronous_.end() ? held{} : found->second;
  }
  [[nodiscard]] held find(const profiler::event& which) const;
  /// Of that thread, the one that the moment lies in.
  [[nodiscard]] static const profiler::event* at(const std::vector<const profiler::event*>& waits,
                                                 std::int64_t moment_ns);
  [[nodiscard]] std::uint64_t outer(const profiler::event& which, bool may_outlive) const;
  /// The outermost event at the same worker that it is a part of.
  [[nodiscard]] std::uint64_t root_of(const profiler::event& which) const;

  std::unordered_map<std::uint64_t, const profiler::event*> by_number_;
  std::map<thread_key, std::vector<const profiler::event*>> waits_;  // by their beginnings, apart from each other
  std::unordered_map<const profiler::event*, held> asynchronous_;
};

}  // namespace ferry::inline v0::detail
