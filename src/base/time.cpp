#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/time.hpp>

namespace ferry::inline v0 {

void timeout::throw_negative(double seconds) {
  throw_error(errc::invalid_argument, fmt::format("a timeout must not be negative or NaN, but is {} s", seconds));
}

}  // namespace ferry::inline v0
