#include <ferry/autograd/grad_mode.hpp>

#include <utility>

namespace ferry::inline v0 {
namespace detail {
namespace {

thread_local constinit bool gradients_on = true;

}  // namespace
}  // namespace detail

bool grad_enabled() noexcept { return detail::gradients_on; }
no_grad::no_grad() noexcept : former_(std::exchange(detail::gradients_on, false)) {}
no_grad::~no_grad() { detail::gradients_on = former_; }
enable_grad::enable_grad() noexcept : former_(std::exchange(detail::gradients_on, true)) {}
enable_grad::~enable_grad() { detail::gradients_on = former_; }

}  // namespace ferry::inline v0
