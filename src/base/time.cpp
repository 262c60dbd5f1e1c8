#include <ferry/base/error.hpp>
#include <ferry/base/time.hpp>

namespace ferry::inline v0 {

void timeout::throw_negative() { throw_error(errc::invalid_argument, "a timeout must not be negative or NaN"); }

}  // namespace ferry::inline v0
