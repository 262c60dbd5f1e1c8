// Memory near the end of what the device has.

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include <ferry/device/memory.hpp>
#include <ferry/device/traits.hpp>

#include "captured_log.hpp"
#include "device/cuda/cuda_runtime.hpp"
#include "gpu_group.hpp"

using namespace gpu_test;
using ferry::device_memory;
using ferry::stream;

namespace {

std::size_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  const ferry::device_guard current(gpu);
  REQUIRE(ferry::detail::cuda_runtime_in_use()->mem_get_info(&free, &total) == 0);
  return free;
}

}  // namespace

TEST_CASE("[alone] a storm of allocations near the end of the device's memory ends in errors of words or in memory") {
  const ferry_test::watchdog limit("an allocation storm", std::chrono::seconds(120));
  const ferry_test::captured_log quiet;
  const stream first = ferry::pool_stream(gpu);
  (void)device_memory(first, 1);
  // All but a rest, in pieces, so that little is left whatever the device has.
  const std::size_t all = free_bytes();
  const std::size_t rest = std::min(all / 8, std::size_t{2} << 30);
  const std::size_t piece = std::max(all / 16, std::size_t{1} << 20);
  std::vector<device_memory> taken;
  bool refused = false;
  while (!refused && free_bytes() > rest + piece) {
    try {
      taken.emplace_back(first, piece);
    } catch (const ferry::error& problem) {
      CHECK(problem.kind() == ferry::errc::out_of_memory);
      refused = true;
    }
  }
  first.synchronize();
  const std::size_t left = free_bytes();
  std::atomic<int> had{0};
  std::atomic<int> wrong{0};
  std::atomic<int> out_of_memory{0};
  std::vector<stream> streams{first};
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed != 5; ++seed) {
    const stream on = streams.emplace_back(ferry::pool_stream(gpu));
    const stream side = streams.emplace_back(ferry::pool_stream(gpu));
    threads.emplace_back([&, seed, on, side] {
      std::minstd_rand random(seed);
      std::vector<device_memory> mine;
      for (int i = 0; i != 400; ++i) {
        try {
          mine.emplace_back(on, left / 16 + random() % (left / 8));
          ferry::device_traits<ferry::cuda>::fill(gpu, mine.back().data(), 1, 4096, on.native<ferry::cuda>());
          if (random() % 3 == 0) {
            side.wait(on);
            mine.back().record_use(side);
          }
          had.fetch_add(1);
        } catch (const ferry::error& problem) {
          (problem.kind() == ferry::errc::out_of_memory ? out_of_memory : wrong).fetch_add(1);
          mine.clear();
        }
        if (mine.size() > 3) mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(random() % mine.size()));
      }
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(wrong == 0);
  CHECK(had > 0);
  CHECK(had + out_of_memory == 1600);
  taken.clear();
  first.synchronize();
  CHECK(ferry::get_device_memory_stats(gpu).used_bytes == 0);
  {  // There is memory again for a block of what the storm had all together.
    const device_memory again(first, left / 2);
    CHECK(again.data() != nullptr);
  }
  // The other processes of the device get what this one has no use for, also if no thread has waited for a stream.
  for (const stream& each : streams) {
    while (!each.done()) std::this_thread::yield();
  }
  ferry::device_memory_trim(gpu);
  CHECK(free_bytes() > all / 2);
}
