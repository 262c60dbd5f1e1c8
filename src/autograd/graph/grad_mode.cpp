#include <ferry/autograd/grad_mode.hpp>

#include <utility>

namespace ferry::inline v0 {
namespace detail {
namespace {

thread_local constinit bool gradients_on = true;

}  // namespace

bool set_grad_enabled(bool now) noexcept { return std::exchange(gradients_on, now); }

}  // namespace detail

bool grad_enabled() noexcept { return detail::gradients_on; }

}  // namespace ferry::inline v0
