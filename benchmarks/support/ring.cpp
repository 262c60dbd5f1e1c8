#include "ring.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "affinity.hpp"
#include "statistics.hpp"

namespace ferry_bench {
namespace {

constexpr std::uint64_t stop = ~std::uint64_t{0};

struct alignas(128) slot {
  std::atomic<std::uint64_t> turn{0};
  std::array<char, 64> bytes{};
};

std::uint64_t wait_for_change(const slot& from, std::uint64_t last) {
  std::uint64_t now = last;
  while ((now = from.turn.load(std::memory_order_acquire)) == last) {
  }
  return now;
}

void give(slot& to, std::array<char, 64>& bytes, std::uint64_t turn) {
  to.bytes = bytes;
  to.turn.store(turn, std::memory_order_release);
}

}  // namespace

std::optional<double> ring_round_trip(std::chrono::nanoseconds window) {
  if (processors().size() < 2) return std::nullopt;
  slot there;
  slot back;
  std::thread echo([&] {
    pin_thread(1);
    for (std::uint64_t turn = 0; (turn = wait_for_change(there, turn)) != stop;) {
      auto bytes = there.bytes;
      give(back, bytes, turn);
    }
  });
  std::vector<double> samples;
  {
    // On a separate thread, so that the caller's affinity does not change.
    std::thread ask([&] {
      pin_thread(0);
      std::array<char, 64> bytes{};
      std::uint64_t turn = 0;
      constexpr int batch = 16;  // one round trip is too short for the clock
      const auto exchange = [&] {
        for (int i = 0; i != batch; ++i) {
          give(there, bytes, ++turn);
          wait_for_change(back, turn - 1);
          bytes = back.bytes;
        }
      };
      for (int i = 0; i != 1000; ++i) exchange();
      samples = time_each(window, 100, exchange);
      for (double& sample : samples) sample /= batch;
      give(there, bytes, stop);
    });
    ask.join();
  }
  echo.join();
  return quantile(samples, 0.5);
}

}  // namespace ferry_bench
