#include <ferry/base/detail/futex.hpp>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace ferry::inline v0::detail {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

void wake(const std::atomic<std::uint32_t>& word, int count) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

}  // namespace

bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, deadline until) noexcept {
  timespec at{};
  timespec* limit = nullptr;
  if (!until.is_never()) {
    // The wait takes an absolute time on CLOCK_MONOTONIC, the clock of steady_clock.
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(until.at().time_since_epoch()).count();
    if (ns <= 0) return false;
    at.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
    at.tv_nsec = static_cast<long>(ns % 1'000'000'000);
    limit = &at;
  }
  const long rc =
      ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, limit, nullptr, FUTEX_BITSET_MATCH_ANY);
  return rc == 0 || errno != ETIMEDOUT;
}

void futex_wake_one(const std::atomic<std::uint32_t>& word) noexcept { wake(word, 1); }
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept { wake(word, INT_MAX); }

}  // namespace ferry::inline v0::detail
