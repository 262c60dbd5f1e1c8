#include "raw_threads.hpp"

#include <atomic>
#include <climits>
#include <cstdint>
#include <thread>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "statistics.hpp"

namespace ferry_bench {
namespace {

constexpr std::uint32_t stop = 2;

// 0: the caller's turn, 1: the other's. `stop` ends it.
class turn {
 public:
  explicit turn(bool spinning) : spinning_(spinning) {}
  void give(std::uint32_t to) {
    value_.store(to, std::memory_order_release);
    if (!spinning_) ::syscall(SYS_futex, address(), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
  std::uint32_t wait_while(std::uint32_t value) {
    std::uint32_t now = value;
    while ((now = value_.load(std::memory_order_acquire)) == value) {
      if (!spinning_) ::syscall(SYS_futex, address(), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
    }
    return now;
  }

 private:
  std::uint32_t* address() { return reinterpret_cast<std::uint32_t*>(&value_); }
  const bool spinning_;
  std::atomic<std::uint32_t> value_{0};
};

}  // namespace

std::vector<double> thread_round_trips(bool spinning, pin_mode pin, std::chrono::nanoseconds window) {
  turn shared(spinning);
  const auto place = [&](int index) {
    if (pin == pin_mode::same_core) return pin_thread(0);
    pin_thread(spinning || pin == pin_mode::two_cores ? index : -1);
  };
  std::vector<double> result;
  std::thread answers([&] {
    place(1);
    while (shared.wait_while(0) != stop) shared.give(0);
  });
  std::thread asks([&] {
    place(0);
    const auto round_trip = [&] {
      shared.give(1);
      shared.wait_while(1);
    };
    for (int i = 0; i != 20; ++i) round_trip();
    result = time_each(window, 20, round_trip);
    shared.give(stop);
  });
  asks.join();
  answers.join();
  return result;
}

}  // namespace ferry_bench
