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

constexpr std::size_t most_bytes = 4096;

struct alignas(128) slot {
  std::atomic<std::uint64_t> turn{0};
  alignas(128) std::array<char, most_bytes> bytes{};
};

std::uint64_t wait_for_change(const slot& from, std::uint64_t last) {
  std::uint64_t now = last;
  while ((now = from.turn.load(std::memory_order_acquire)) == last) {
  }
  return now;
}

void give(slot& to, const std::array<char, most_bytes>& bytes, std::size_t count, std::uint64_t turn) {
  std::memcpy(to.bytes.data(), bytes.data(), count);
  to.turn.store(turn, std::memory_order_release);
}

}  // namespace

std::vector<double> ring_round_trips(std::size_t bytes, std::chrono::nanoseconds window) {
  if (processors().size() < 2) return {};
  slot there;
  slot back;
  std::thread echo([&] {
    pin_thread(1);
    std::array<char, most_bytes> own{};
    for (std::uint64_t turn = 0; (turn = wait_for_change(there, turn)) != stop;) {
      std::memcpy(own.data(), there.bytes.data(), bytes);
      give(back, own, bytes, turn);
    }
  });
  std::vector<double> samples;
  {
    // On a separate thread, so that the caller's affinity does not change.
    std::thread ask([&] {
      pin_thread(0);
      std::array<char, most_bytes> own{};
      std::uint64_t turn = 0;
      constexpr int batch = 16;  // one round trip is too short for the clock
      const auto exchange = [&] {
        for (int i = 0; i != batch; ++i) {
          give(there, own, bytes, ++turn);
          wait_for_change(back, turn - 1);
          std::memcpy(own.data(), back.bytes.data(), bytes);
        }
      };
      for (int i = 0; i != 100; ++i) exchange();
      samples = time_each(window, 100, exchange);
      for (double& sample : samples) sample /= batch;
      give(there, own, bytes, stop);
    });
    ask.join();
  }
  echo.join();
  return samples;
}

std::optional<double> ring_round_trip(std::chrono::nanoseconds window) {
  auto samples = ring_round_trips(64, window);
  if (samples.empty()) return std::nullopt;
  return quantile(samples, 0.5);
}

}  // namespace ferry_bench
