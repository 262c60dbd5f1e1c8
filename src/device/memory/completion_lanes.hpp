#pragma once

// What streams have yet to be done with, in the order in which they are.

#include <algorithm>
#include <cstddef>
#include <deque>
#include <exception>
#include <list>
#include <utility>

#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {

/// Values that each wait for a mark in a stream. A stream reaches its marks in their order, so only the first of each is asked
/// about, whatever waits behind it. Not thread-safe.
template <class T>
class completion_lanes {
 public:
  /// `mark` has been recorded on `on`. Throws std::bad_alloc, and has changed nothing then.
  void add(const stream& on, event&& mark, const T& value) {
    auto lane = std::find_if(lanes_.begin(), lanes_.end(), [&](const lane_of& each) { return each.on == on; });
    if (lane == lanes_.end()) lane = lanes_.insert(lane, lane_of{on, {}});
    lane->entries.push_back({std::move(mark), value});
    ++size_;
  }

  /// Removes what streams have reached, and calls reached(value, failure) for each: the failure is null, or that of the device,
  /// which will never say that it has.
  template <class F>
  void collect(const F& reached) {
    for (lane_of& each : lanes_) {
      while (!each.entries.empty()) {
        std::exception_ptr failure;
        try {
          if (!each.entries.front().mark.done()) break;
        } catch (const std::exception&) {
          failure = std::current_exception();
        }
        const T value = each.entries.front().value;
        each.entries.pop_front();
        --size_;
        reached(value, failure);
      }
    }
    std::erase_if(lanes_, [](const lane_of& each) { return each.entries.empty(); });
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  struct entry {
    event mark;
    T value;
  };
  struct lane_of {
    stream on;
    std::deque<entry> entries;
  };
  std::list<lane_of> lanes_;
  std::size_t size_ = 0;
};

}  // namespace ferry::inline v0::detail
