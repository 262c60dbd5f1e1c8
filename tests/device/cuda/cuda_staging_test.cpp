// Page-locked memory: how often devices are asked whether they have done with it, and how much of it there is.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <device/memory/pinned_memory.hpp>
#include <device/memory/staging.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>

#include "fake_cuda.hpp"
#include "watchdog.hpp"

namespace cuda_staging_test {

using fake_cuda::call;
using ferry::device;
using ferry::device_kind;
using ferry::device_memory;
using ferry::stream;
using ferry::detail::pinned_block;

namespace {

constexpr std::size_t kibibyte = 1024;
constexpr std::size_t mebibyte = 1024 * kibibyte;
const device gpu{device_kind::cuda, 6};

struct budget {
  explicit budget(std::size_t bytes) { ferry::detail::set_pinned_memory_budget(bytes); }
  ~budget() { ferry::detail::set_pinned_memory_budget(256 * mebibyte); }
};

ferry::staging_memory_stats stats() { return ferry::get_staging_memory_stats(device_kind::cuda); }

}  // namespace

TEST_CASE("a block of page-locked memory asks one mark of each stream, however many are awaited") {
  const stream first = ferry::pool_stream(gpu);
  const stream second = ferry::pool_stream(gpu);
  const fake_cuda::pause nothing_runs;
  const auto use = [&](int count) {
    const auto asked = fake_cuda::calls(call::event_query);
    for (int i = 0; i != count; ++i) {
      pinned_block block(gpu, 8 * kibibyte);
      block.begin_use();
      block.release_after(i % 2 == 0 ? first : second);
    }
    return fake_cuda::calls(call::event_query) - asked;
  };
  (void)use(200);
  CHECK(stats().blocks_awaited >= 200);
  CHECK(use(100) <= 200);
}

TEST_CASE("copies to a device wait where page-locked memory is short, and take no more of it") {
  const ferry_test::watchdog limit("copies to a device");
  const stream on = ferry::pool_stream(gpu);
  fake_cuda::drain();
  const auto before = stats();
  const budget small(before.reserved_bytes + 8 * mebibyte);
  // More than there may be, whatever other tests have left unused.
  const std::size_t size = before.reserved_bytes + 24 * mebibyte;
  const device_memory target(on, size);
  const std::vector<unsigned char> source(size, 7);
  std::atomic<bool> over{false};
  std::thread copying;
  {
    const fake_cuda::pause nothing_runs;
    copying = std::thread([&] {
      ferry::detail::upload(on, target.data(), source.data(), source.size());
      over = true;
    });
    while (stats().blocks_awaited < 2) std::this_thread::yield();
    CHECK(!over);
  }
  copying.join();
  on.synchronize();
  CHECK(fake_cuda::peek(static_cast<const unsigned char*>(target.data()) + size - 1, 1)[0] == 7);
  // Blocks of other sizes do not help; nothing more than the budget is in use beside them.
  CHECK(stats().reserved_bytes <= 2 * before.reserved_bytes + 8 * mebibyte);
}

}  // namespace cuda_staging_test
