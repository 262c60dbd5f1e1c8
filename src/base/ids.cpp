#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>

#include <cerrno>

#include <sys/random.h>

namespace ferry::inline v0 {

incarnation_id incarnation_id::random() {
  incarnation_id result;
  while (result.value == 0) {
    if (::getrandom(&result.value, sizeof result.value, 0) != static_cast<ssize_t>(sizeof result.value) &&
        errno != EINTR) {
      throw_errno(errc::system_failure, "getrandom", errno);
    }
  }
  return result;
}

}  // namespace ferry::inline v0
