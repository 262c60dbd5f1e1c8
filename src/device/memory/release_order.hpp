#pragma once

// The order in which device memory is freed by threads that work with streams of their own.

#include <utility>

namespace ferry::inline v0::detail {

/// While one exists, memory freed by the calling thread is reused only after the work queued by then on its current
/// stream of the device, even if that stream was never recorded as a user of the memory.
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
