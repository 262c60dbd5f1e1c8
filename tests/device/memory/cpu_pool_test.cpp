#include <ferry/device/cpu_pool.hpp>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "expect_error.hpp"

namespace cpu_pool_test {

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

bool aligned(void* memory) { return reinterpret_cast<std::uintptr_t>(memory) % ferry::cpu_alignment == 0; }

struct restored_limit {
  std::size_t limit = ferry::get_cpu_pool_stats().limit_bytes;
  ~restored_limit() { ferry::cpu_pool_set_limit(limit); }
};

}  // namespace

TEST_CASE("blocks of every size are aligned and fully usable") {
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (std::size_t size = 1; size <= 8 * mebibyte; size = size < 700 ? size + 1 : size + size / 7) {
    void* memory = ferry::cpu_allocate(size);
    REQUIRE(aligned(memory));
    std::memset(memory, static_cast<int>(size % 251), size);
    blocks.emplace_back(memory, size);
  }
  for (const auto& [memory, size] : blocks) {
    const auto* bytes = static_cast<const unsigned char*>(memory);
    CHECK(bytes[0] == size % 251);
    CHECK(bytes[size - 1] == size % 251);
  }
  for (const auto& [memory, size] : blocks) ferry::cpu_deallocate(memory, size);
}

TEST_CASE("no bytes, no block") {
  CHECK(ferry::cpu_allocate(0) == nullptr);
  ferry::cpu_deallocate(nullptr, 0);
}

TEST_CASE("a block is reused instead of allocated from the system") {
  for (const std::size_t size :
       {std::size_t{24}, std::size_t{5000}, 100 * std::size_t{1024}, 3 * mebibyte, 40 * mebibyte}) {
    void* first = ferry::cpu_allocate(size);
    ferry::cpu_deallocate(first, size);
    const auto before = ferry::get_cpu_pool_stats();
    for (int round = 0; round != 10; ++round) {
      void* again = ferry::cpu_allocate(size - static_cast<std::size_t>(round));
      CHECK(again == first);
      ferry::cpu_deallocate(again, size - static_cast<std::size_t>(round));
    }
    const auto after = ferry::get_cpu_pool_stats();
    CHECK(after.system_allocations == before.system_allocations);
    CHECK(after.reserved_bytes == before.reserved_bytes);
  }
}

TEST_CASE("the cache is bounded, and the oldest large block is evicted first") {
  const restored_limit restore;
  ferry::cpu_pool_trim();
  CHECK(ferry::get_cpu_pool_stats().cached_bytes == 0);
  ferry::cpu_pool_set_limit(20 * mebibyte);
  std::array<void*, 3> blocks{};
  for (void*& block : blocks) block = ferry::cpu_allocate(8 * mebibyte);
  const auto in_use = ferry::get_cpu_pool_stats().reserved_bytes;
  for (void* block : blocks) ferry::cpu_deallocate(block, 8 * mebibyte);
  const auto stats = ferry::get_cpu_pool_stats();
  CHECK(stats.limit_bytes == 20 * mebibyte);
  CHECK(stats.cached_bytes == 16 * mebibyte);
  CHECK(stats.reserved_bytes == in_use - 8 * mebibyte);
  void* newest = ferry::cpu_allocate(8 * mebibyte);
  CHECK(newest == blocks[2]);
  void* second = ferry::cpu_allocate(8 * mebibyte);
  CHECK(second == blocks[1]);
  ferry::cpu_deallocate(newest, 8 * mebibyte);
  ferry::cpu_deallocate(second, 8 * mebibyte);

  void* huge = ferry::cpu_allocate(32 * mebibyte);  // larger than the bound: never cached
  ferry::cpu_deallocate(huge, 32 * mebibyte);
  CHECK(ferry::get_cpu_pool_stats().cached_bytes <= 20 * mebibyte);

  ferry::cpu_pool_set_limit(0);
  CHECK(ferry::get_cpu_pool_stats().cached_bytes == 0);
  void* uncached = ferry::cpu_allocate(4 * mebibyte);
  ferry::cpu_deallocate(uncached, 4 * mebibyte);
  CHECK(ferry::get_cpu_pool_stats().cached_bytes == 0);
}

TEST_CASE("trim releases everything") {
  const auto in_use = [] {
    ferry::cpu_pool_trim();
    return ferry::get_cpu_pool_stats().reserved_bytes;
  };
  const auto before = in_use();
  std::vector<void*> blocks;
  for (int i = 0; i != 200; ++i) blocks.push_back(ferry::cpu_allocate(1000));
  blocks.push_back(ferry::cpu_allocate(9 * mebibyte));
  CHECK(in_use() > before);
  ferry::cpu_deallocate(blocks.back(), 9 * mebibyte);
  blocks.pop_back();
  for (void* block : blocks) ferry::cpu_deallocate(block, 1000);
  CHECK(in_use() == before);
}

TEST_CASE("an impossible size is an error that names the size") {
  expect_error(ferry::errc::out_of_memory, "cannot allocate 9223372036854775807 bytes on cpu",
               [] { (void)ferry::cpu_allocate(std::size_t{0x7fff'ffff'ffff'ffff}); });
  expect_error(ferry::errc::out_of_memory, "cannot allocate 140737488355328 bytes",
               [] { (void)ferry::cpu_allocate(std::size_t{1} << 47); });
}

TEST_CASE("one thread allocates, another frees") {
  struct item {
    unsigned char* memory;
    std::size_t size;
    unsigned char mark;
  };
  std::mutex mutex;
  std::condition_variable filled;
  std::deque<item> queue;
  bool done = false;
  constexpr std::size_t rounds = 20'000;
  bool intact = true;
  std::thread consumer([&] {
    for (;;) {
      std::unique_lock lock(mutex);
      filled.wait(lock, [&] { return done || !queue.empty(); });
      if (queue.empty()) return;
      const item next = queue.front();
      queue.pop_front();
      lock.unlock();
      intact = intact && next.memory[0] == next.mark && next.memory[next.size - 1] == next.mark;
      ferry::cpu_deallocate(next.memory, next.size);
    }
  });
  for (std::size_t i = 0; i != rounds; ++i) {
    const std::size_t size = i % 1000 == 0 ? 3 * mebibyte : i % 100 == 0 ? 70'000 : 1 + i * 37 % 3000;
    auto* memory = static_cast<unsigned char*>(ferry::cpu_allocate(size));
    const auto mark = static_cast<unsigned char>(i);
    memory[0] = memory[size - 1] = mark;
    const std::lock_guard lock(mutex);
    queue.push_back({memory, size, mark});
    filled.notify_one();
  }
  {
    const std::lock_guard lock(mutex);
    done = true;
    filled.notify_one();
  }
  consumer.join();
  CHECK(intact);
}

TEST_CASE("a thread that ends leaves its blocks to the others") {
  ferry::cpu_pool_trim();
  constexpr std::size_t size = 20'000;
  void* from_thread = nullptr;
  std::thread([&] {
    from_thread = ferry::cpu_allocate(size);
    ferry::cpu_deallocate(from_thread, size);
  }).join();
  void* here = ferry::cpu_allocate(size);
  CHECK(here == from_thread);
  ferry::cpu_deallocate(here, size);
}

}  // namespace cpu_pool_test
