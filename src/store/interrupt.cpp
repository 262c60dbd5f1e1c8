#include "interrupt.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

interrupt::interrupt() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw_errno(errc::system_failure, "eventfd", errno);
}

// The counter is never read, so the descriptor stays readable for all present and future waits.
void interrupt::raise() noexcept {
  const std::uint64_t one = 1;
  // Fails only if the counter is at its maximum, and then the descriptor is readable already.
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof(one));
}

bool interrupt::raised() const noexcept {
  pollfd look{event_.get(), POLLIN, 0};
  return ::poll(&look, 1, 0) > 0;
}

interrupt::outcome interrupt::wait(int fd, short events, deadline until) const {
  pollfd both[] = {{event_.get(), POLLIN, 0}, {fd, events, 0}};
  for (;;) {
    timespec left{};
    const timespec* limit = nullptr;
    if (!until.is_never()) {
      const auto ns = until.remaining().count();
      left = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
      limit = &left;
    }
    const int ready = ::ppoll(both, fd < 0 ? 1 : 2, limit, nullptr);
    if (ready < 0) {
      if (errno == EINTR) continue;
      throw_errno(errc::system_failure, "poll", errno);
    }
    if (both[0].revents != 0) return outcome::interrupted;
    if (ready == 0) return outcome::expired;
    return outcome::ready;
  }
}

interrupt::outcome interrupt::sleep(std::chrono::nanoseconds pause, deadline until) const {
  return wait(-1, 0, sooner(until, pause));
}

deadline sooner(deadline a, std::chrono::nanoseconds pause) { return std::min(a, deadline(clock::now() + pause)); }

}  // namespace ferry::inline v0::detail
