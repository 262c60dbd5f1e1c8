// The wait of a worker that leaves.

#include "backend/membership/quiescence.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include <doctest/doctest.h>

namespace quiescence_test {

using ferry::deadline;
using ferry::detail::leave_interrupt;
using ferry::detail::quiescence;
using namespace std::chrono_literals;

TEST_CASE("a worker that leaves waits until it is quiet, and looks again at every change") {
  quiescence quiet;
  std::atomic<int> looks{0};
  std::atomic<bool> busy{true};
  std::thread ends([&] {
    while (looks.load() == 0) std::this_thread::yield();
    busy.store(false);
    quiet.changed();
  });
  CHECK(quiet.wait(deadline(), leave_interrupt::others, [&] {
    looks.fetch_add(1);
    return !busy.load();
  }) == quiescence::result::quiet);
  ends.join();
}

TEST_CASE("the wait of a worker that is never quiet ends at its deadline, or when it is interrupted") {
  quiescence quiet;
  const auto never = [] { return false; };
  CHECK(quiet.wait(deadline(ferry::clock::now()), leave_interrupt::all, never) == quiescence::result::too_late);
  std::thread interrupts([&] { quiet.interrupt(leave_interrupt::others); });
  CHECK(quiet.wait(deadline(), leave_interrupt::others, never) == quiescence::result::interrupted);
  interrupts.join();
  CHECK(quiet.interrupted(leave_interrupt::others));
  CHECK_FALSE(quiet.interrupted(leave_interrupt::all));
  CHECK(quiet.wait(deadline(ferry::clock::now()), leave_interrupt::all, never) == quiescence::result::too_late);
  quiet.interrupt(leave_interrupt::all);
  quiet.interrupt(leave_interrupt::others);  // the strongest stays
  CHECK(quiet.wait(deadline(), leave_interrupt::all, never) == quiescence::result::interrupted);
}

}  // namespace quiescence_test
