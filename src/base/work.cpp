#include <ferry/base/work.hpp>

#include <utility>

namespace ferry::inline v0 {
namespace detail {
namespace {

thread_local blocking_observer* current_observer = nullptr;

}  // namespace
}  // namespace detail

blocking_observer* set_blocking_observer(blocking_observer* observer) noexcept {
  return std::exchange(detail::current_observer, observer);
}
blocking_observer* get_blocking_observer() noexcept { return detail::current_observer; }

}  // namespace ferry::inline v0
