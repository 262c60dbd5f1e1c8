// The memory of this process that others read in place: where blocks lie, and when the system has their pages.

#include "device/memory/shared_arena.hpp"

#include <cstddef>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ferry/device/cpu_pool.hpp>

namespace shared_arena_test {

namespace {

using ferry::detail::shared_arena;
using ferry::detail::shared_granule;

constexpr std::size_t mebibyte = std::size_t{1} << 20U;

// The bytes that the system has given to it.
std::size_t resident(const shared_arena& arena) {
  struct stat file {};
  REQUIRE(::fstat(arena.descriptor(), &file) == 0);
  return static_cast<std::size_t>(file.st_blocks) * 512;
}

}  // namespace

TEST_CASE("blocks of shared memory are usable, apart from each other, and used again") {
  shared_arena arena(64 * mebibyte);
  std::vector<std::pair<unsigned char*, std::size_t>> blocks;
  for (const std::size_t bytes : {std::size_t{1}, shared_granule, shared_granule + 1, mebibyte, 3 * mebibyte + 77}) {
    auto* const memory = static_cast<unsigned char*>(arena.allocate(bytes));
    REQUIRE(memory != nullptr);
    CHECK(static_cast<std::size_t>(reinterpret_cast<std::byte*>(memory) - arena.bytes().data()) % shared_granule == 0);
    std::memset(memory, static_cast<int>(blocks.size() + 1), bytes);
    blocks.emplace_back(memory, bytes);
  }
  CHECK(arena.now().blocks == blocks.size());
  for (std::size_t i = 0; i != blocks.size(); ++i) {
    CHECK(blocks[i].first[0] == i + 1);
    CHECK(blocks[i].first[blocks[i].second - 1] == i + 1);
  }
  arena.deallocate(blocks[3].first, blocks[3].second);
  CHECK(arena.now().cached_bytes == mebibyte);
  CHECK(arena.allocate(mebibyte) == blocks[3].first);
  for (const auto& [memory, bytes] : blocks) arena.deallocate(memory, bytes);
  CHECK(arena.now().blocks == 0);
  CHECK(arena.now().used_bytes == 0);
  // Neighbours have become one.
  void* const all = arena.allocate(4 * mebibyte + shared_granule);
  CHECK(all == blocks[0].first);
  arena.deallocate(all, 4 * mebibyte + shared_granule);
}

TEST_CASE("shared memory that is full gives no block, and that of any size once it is free") {
  shared_arena arena(8 * mebibyte);
  CHECK(arena.allocate(0) == nullptr);
  CHECK(arena.allocate(9 * mebibyte) == nullptr);
  CHECK(arena.allocate(~std::size_t{0}) == nullptr);
  std::vector<void*> blocks;
  while (void* const memory = arena.allocate(mebibyte)) blocks.push_back(memory);
  CHECK(blocks.size() == 8);
  arena.deallocate(blocks[2], mebibyte);
  arena.deallocate(blocks[5], mebibyte);
  CHECK(arena.allocate(2 * mebibyte) == nullptr);  // there are two, but not side by side
  for (const std::size_t i : {0, 1, 3, 4, 6, 7}) arena.deallocate(blocks[i], mebibyte);
  CHECK(arena.allocate(8 * mebibyte) == blocks[0]);
}

TEST_CASE("free shared memory is kept up to the limit of the pool, and given back when asked") {
  const std::size_t usual = ferry::get_cpu_pool_stats().limit_bytes;
  ferry::cpu_pool_set_limit(2 * mebibyte);
  shared_arena arena(64 * mebibyte);
  void* const first = arena.allocate(2 * mebibyte);
  void* const second = arena.allocate(4 * mebibyte);
  REQUIRE(second != nullptr);
  CHECK(resident(arena) == 6 * mebibyte);
  arena.deallocate(first, 2 * mebibyte);
  CHECK(arena.now().cached_bytes == 2 * mebibyte);
  arena.deallocate(second, 4 * mebibyte);
  CHECK(arena.now().cached_bytes == 2 * mebibyte);
  CHECK(resident(arena) == 2 * mebibyte);
  arena.trim();
  CHECK(arena.now().cached_bytes == 0);
  CHECK(resident(arena) == 0);
  auto* const again = static_cast<unsigned char*>(arena.allocate(6 * mebibyte));
  REQUIRE(again == first);
  CHECK(again[0] == 0);  // fresh
  arena.deallocate(again, 6 * mebibyte);
  CHECK(resident(arena) == 0);
  ferry::cpu_pool_set_limit(usual);
}

TEST_CASE("random blocks of shared memory never overlap") {
  shared_arena arena(64 * mebibyte);
  std::mt19937 random(7);
  struct block {
    unsigned char* memory;
    std::size_t bytes;
    unsigned char value;
  };
  std::vector<block> blocks;
  for (unsigned step = 0; step != 4000; ++step) {
    if (blocks.size() < 40 && random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % (2 * mebibyte);
      auto* const memory = static_cast<unsigned char*>(arena.allocate(bytes));
      if (memory == nullptr) continue;
      const auto value = static_cast<unsigned char>(step);
      memory[0] = memory[bytes - 1] = value;
      blocks.push_back({memory, bytes, value});
    } else if (!blocks.empty()) {
      const std::size_t which = random() % blocks.size();
      const block& each = blocks[which];
      const bool kept = each.memory[0] == each.value && each.memory[each.bytes - 1] == each.value;
      if (!kept) FAIL_CHECK("a block was written by another one");
      arena.deallocate(each.memory, each.bytes);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
    }
    if (step % 1000 == 999) arena.trim();
  }
  for (const block& each : blocks) arena.deallocate(each.memory, each.bytes);
  CHECK(arena.now().used_bytes == 0);
  CHECK(arena.allocate(64 * mebibyte) == arena.bytes().data());
}

TEST_CASE("the size of shared memory cannot be changed") {
  const shared_arena arena(mebibyte);
  CHECK(::ftruncate(arena.descriptor(), 0) != 0);
  CHECK(::ftruncate(arena.descriptor(), static_cast<off_t>(2 * mebibyte)) != 0);
  CHECK((::fcntl(arena.descriptor(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW));
}

}  // namespace shared_arena_test
