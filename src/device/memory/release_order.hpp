#pragma once

// In which order memory of devices is given back by threads that work with streams of their own.

#include <utility>

namespace ferry::inline v0::detail {

/// While one lives, memory that the calling thread gives back is used again only after what its current stream of the device
/// has been given by then, too: also if the memory has no record of that stream.
class release_in_current_order {
 public:
  release_in_current_order() noexcept : former_(std::exchange(active, true)) {}
  release_in_current_order(const release_in_current_order&) = delete;
  release_in_current_order& operator=(const release_in_current_order&) = delete;
  ~release_in_current_order() { active = former_; }

  static constinit thread_local bool active;

 private:
  const bool former_;
};

}  // namespace ferry::inline v0::detail
