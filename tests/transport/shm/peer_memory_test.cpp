// The memory of another process, read in place: what is seen of it, and which is taken.

#include "transport/shm/peer_memory.hpp"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ferry/base/error.hpp>

#include "device/memory/shared_arena.hpp"
#include "expect_error.hpp"
#include "processes.hpp"
#include "sealed_memfd.hpp"

namespace peer_memory_test {

namespace {

namespace d = ferry::detail;
using ferry::errc;

constexpr std::size_t mebibyte = std::size_t{1} << 20U;

unsigned char* begun(d::peer_memory& memory, std::uint64_t offset, std::uint64_t bytes) {
  const auto use = memory.begin_use(offset, bytes);
  return reinterpret_cast<unsigned char*>(use.first);
}

// The owner's memory, and what another process would have of it.
struct both_sides {
  d::shared_arena owner{256 * mebibyte};
  std::shared_ptr<d::peer_memory> reader = std::make_shared<d::peer_memory>(d::unique_fd(::dup(owner.descriptor())));
};

}  // namespace

TEST_CASE("a reader sees what the owner has written, and its own writes until it has done with the memory") {
  both_sides sides;
  for (const std::size_t bytes : {d::shared_granule, mebibyte, 2 * mebibyte, 24 * mebibyte}) {
    CAPTURE(bytes);
    auto* const own = static_cast<unsigned char*>(sides.owner.allocate(bytes));
    REQUIRE(own != nullptr);
    const auto at = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(own) - sides.owner.bytes().data());
    for (int round = 1; round != 12; ++round) {
      const auto value = static_cast<unsigned char>(round);
      std::memset(own, value, bytes);
      auto* const seen = begun(*sides.reader, at, bytes);
      CHECK(seen[0] == value);
      CHECK(seen[bytes - 1] == value);
      own[bytes / 2] = 200;  // not written here: the owner's writes are seen
      CHECK(seen[bytes / 2] == 200);
      if (round % 3 != 0) {
        seen[0] = seen[bytes / 3] = seen[bytes - 1] = 100;
        CHECK(own[0] == value);
        own[1] = 201;  // on a page that is the reader's own by now
        CHECK(seen[1] == value);
        CHECK(own[bytes / 3] == value);
        CHECK(own[bytes - 1] == value);
      }
      sides.reader->end_use(at, bytes);
    }
    sides.owner.deallocate(own, bytes);
  }
}

TEST_CASE("memory that is handed over is the reader's to write, and lent or handed over again afterwards") {
  both_sides sides;
  REQUIRE(sides.reader->takes_over());
  constexpr auto handed_over = d::peer_memory::given::handed_over;
  for (const std::size_t bytes : {d::shared_granule, mebibyte, 24 * mebibyte}) {
    CAPTURE(bytes);
    auto* const own = static_cast<unsigned char*>(sides.owner.allocate(bytes));
    REQUIRE(own != nullptr);
    const auto at = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(own) - sides.owner.bytes().data());
    for (int round = 1; round != 8; ++round) {
      const auto value = static_cast<unsigned char>(round);
      std::memset(own, value, bytes);
      const bool is_lent = round % 3 == 0;
      const auto use = sides.reader->begin_use(at, bytes, is_lent ? d::peer_memory::given::lent : handed_over);
      auto* const seen = reinterpret_cast<unsigned char*>(use.first);
      REQUIRE(seen != nullptr);
      CHECK(seen[0] == value);
      CHECK(seen[bytes - 1] == value);
      seen[0] = seen[bytes - 1] = 100;
      CHECK(own[0] == (is_lent ? value : 100));
      CHECK(own[bytes - 1] == (is_lent ? value : 100));
      for (const auto how : {d::peer_memory::given::lent, handed_over})
        CHECK(sides.reader->begin_use(at, 1, how).why == d::peer_memory::refusal::overlaps);
      sides.reader->end_use(at, bytes);
    }
    sides.owner.deallocate(own, bytes);
  }
}

TEST_CASE("memory that was used in part is used whole") {
  both_sides sides;
  constexpr std::size_t bytes = 2 * mebibyte;
  auto* const own = static_cast<unsigned char*>(sides.owner.allocate(bytes));
  REQUIRE(own != nullptr);
  std::memset(own, 5, bytes);
  for (const auto how : {d::peer_memory::given::lent, d::peer_memory::given::handed_over}) {
    for (const std::size_t part : {std::size_t{100}, d::shared_granule + 1, mebibyte + 4096, bytes}) {
      CAPTURE(part);
      const auto use = sides.reader->begin_use(0, part, how);
      REQUIRE(use.first != nullptr);
      CHECK(use.first[0] == std::byte{5});
      CHECK(use.first[part - 1] == std::byte{5});
      sides.reader->end_use(0, part);
    }
    const auto middle = sides.reader->begin_use(mebibyte + 4096, 4096, how);
    REQUIRE(middle.first != nullptr);
    CHECK(middle.first[0] == std::byte{5});
    sides.reader->end_use(mebibyte + 4096, 4096);
  }
}

TEST_CASE("memory that may only be read is lent, and not handed over") {
  const d::shared_arena owner(mebibyte);
  const std::string path = "/proc/self/fd/" + std::to_string(owner.descriptor());
  const auto reader = std::make_shared<d::peer_memory>(d::unique_fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  CHECK_FALSE(reader->takes_over());
  auto* const seen = begun(*reader, 0, mebibyte);
  REQUIRE(seen != nullptr);
  seen[0] = 1;
  CHECK(seen[0] == 1);
  reader->end_use(0, mebibyte);
}

TEST_CASE("parts of a block are used apart from each other") {
  both_sides sides;
  constexpr std::size_t part = 4 * mebibyte;
  auto* const own = static_cast<unsigned char*>(sides.owner.allocate(4 * part));
  REQUIRE(own != nullptr);
  const auto at = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(own) - sides.owner.bytes().data());
  std::memset(own, 1, 4 * part);
  auto* const first = begun(*sides.reader, at, part);
  auto* const second = begun(*sides.reader, at + part, part);
  first[0] = second[0] = 9;
  sides.reader->end_use(at, part);
  auto* const again = begun(*sides.reader, at, part);
  CHECK(again[0] == 1);
  CHECK(second[0] == 9);
  sides.reader->end_use(at + part, part);
  sides.reader->end_use(at, part);
  // A use that spans former ones.
  auto* const whole = begun(*sides.reader, at, 4 * part);
  CHECK(whole[0] == 1);
  CHECK(whole[part] == 1);
  sides.reader->end_use(at, 4 * part);
}

TEST_CASE("threads use parts of the memory at once, small and large ones") {
  both_sides sides;
  constexpr int threads = 4;
  constexpr std::size_t part = 8 * mebibyte;
  auto* const own = static_cast<unsigned char*>(sides.owner.allocate(threads * part));
  REQUIRE(own != nullptr);
  std::memset(own, 3, threads * part);
  const auto at = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(own) - sides.owner.bytes().data());
  std::atomic<int> wrong{0};
  std::vector<std::thread> running;
  for (std::size_t i = 0; i != threads; ++i) {
    running.emplace_back([&, i] {
      for (std::size_t round = 0; round != 60; ++round) {
        const std::size_t bytes = round % 2 == 0 ? part : mebibyte;
        auto* const seen = begun(*sides.reader, at + i * part, bytes);
        if (seen[0] != 3 || seen[bytes - 1] != 3) wrong.fetch_add(1);
        seen[0] = seen[bytes - 1] = 7;
        sides.reader->end_use(at + i * part, bytes);
      }
    });
  }
  for (std::thread& each : running) each.join();
  CHECK(wrong.load() == 0);
}

TEST_CASE("pages that are in use are not used a second time") {
  both_sides sides;
  constexpr std::size_t bytes = 4 * mebibyte;
  REQUIRE(sides.owner.allocate(bytes) != nullptr);
  REQUIRE(sides.reader->begin_use(mebibyte, mebibyte).first != nullptr);
  for (const auto& [offset, size] : {std::pair{mebibyte, mebibyte}, std::pair{std::size_t{0}, mebibyte + 1},
                                     std::pair{2 * mebibyte - 1, std::size_t{1}}, std::pair{std::size_t{0}, bytes}}) {
    const auto second = sides.reader->begin_use(offset, size);
    CHECK(second.first == nullptr);
    CHECK(second.why == d::peer_memory::refusal::overlaps);
  }
  CHECK(sides.reader->begin_use(0, mebibyte).first != nullptr);
  CHECK(sides.reader->begin_use(2 * mebibyte, 2 * mebibyte).first != nullptr);
  sides.reader->end_use(mebibyte, mebibyte);
  CHECK(sides.reader->begin_use(mebibyte, mebibyte).first != nullptr);
}

namespace {

// With all of this process's memory locked, and what it will have.
std::string read_locked(d::peer_memory::given how) {
  constexpr std::size_t bytes = 4 * mebibyte;
  d::shared_arena owner(64 * mebibyte);
  if (::mlockall(MCL_CURRENT | MCL_FUTURE) != 0) return "may not lock";
  const auto reader = std::make_shared<d::peer_memory>(d::unique_fd(::dup(owner.descriptor())));
  auto* const own = static_cast<unsigned char*>(owner.allocate(bytes));
  if (own == nullptr) return "no memory";
  for (unsigned char value = 1; value != 6; ++value) {
    std::memset(own, value, bytes);
    auto* const seen = reinterpret_cast<unsigned char*>(reader->begin_use(0, bytes, how).first);
    if (seen == nullptr) return "refused";
    if (seen[0] != value || seen[bytes - 1] != value) return "old bytes";
    seen[0] = seen[bytes - 1] = 100;
    reader->end_use(0, bytes);
    if (value == 3 && ::mlockall(MCL_CURRENT) != 0) return "cannot lock again";
  }
  struct stat file {};
  if (::fstat(owner.descriptor(), &file) != 0) return "no file";
  return file.st_blocks * 512 == static_cast<blkcnt_t>(bytes) ? "only what is used" : "more";
}

const ferry_test::role locking("reads memory with all of its own locked", [](const std::vector<std::string>&) {
  for (const auto how : {d::peer_memory::given::lent, d::peer_memory::given::handed_over})
    ferry_test::tell_parent(read_locked(how));
  return 0;
});

}  // namespace

TEST_CASE("a process that locks its memory has neither pages that nothing uses nor old ones") {
  ferry_test::child_process child({.role = "reads memory with all of its own locked"});
  for (int i = 0; i != 2; ++i) {
    const std::string said = child.read_line();
    CHECK_MESSAGE((said == "only what is used" || said == "may not lock"), said);
  }
  CHECK(child.wait() == 0);
}

TEST_CASE("memory of another process must be sealed, and of a size that it can have") {
  constexpr int both = F_SEAL_SHRINK | F_SEAL_GROW;
  const auto is_refused = [](const d::unique_fd& descriptor, const std::string& why) {
    expect_error(errc::handshake_failed, why, [&] { (void)std::make_shared<d::peer_memory>(descriptor); });
  };
  is_refused(shm_test::sealed_memfd(mebibyte, 0), "not sealed");
  is_refused(shm_test::sealed_memfd(mebibyte, F_SEAL_SHRINK), "not sealed");
  is_refused(shm_test::sealed_memfd(0, both), "no size");
  is_refused(shm_test::sealed_memfd(mebibyte + 4096, both), "no size");
  is_refused(shm_test::sealed_memfd(d::most_shared_bytes + mebibyte, both), "no size");
  is_refused(d::unique_fd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), "not of sealed memory");
  is_refused(d::unique_fd(), "not of sealed memory");
  const auto good = std::make_shared<d::peer_memory>(shm_test::sealed_memfd(mebibyte, both));
  CHECK(good->has(0, mebibyte));
  CHECK(good->has(mebibyte - 1, 1));
  CHECK_FALSE(good->has(mebibyte, 1));
  CHECK_FALSE(good->has(1, mebibyte));
  CHECK_FALSE(good->has(~std::uint64_t{0}, 2));
  CHECK_FALSE(good->has(2, ~std::uint64_t{0}));
}

}  // namespace peer_memory_test
