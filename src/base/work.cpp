#include <ferry/base/work.hpp>

#include <utility>

namespace ferry::inline v0 {
namespace {
thread_local blocking_observer* current_observer = nullptr;
}

blocking_observer* set_blocking_observer(blocking_observer* observer) noexcept {
  return std::exchange(current_observer, observer);
}
blocking_observer* get_blocking_observer() noexcept { return current_observer; }

}  // namespace ferry::inline v0
