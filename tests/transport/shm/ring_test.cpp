// The two ends of a ring, and an other end that writes what it likes.

#include "transport/shm/ring.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace ring_test {

namespace {

namespace d = ferry::detail;

constexpr std::size_t ring_bytes = 4096;
constexpr std::size_t guard_bytes = 4096;
constexpr std::byte guard{0xa5};

struct ring_memory {
  d::ring_control control;
  std::vector<std::byte> bytes = std::vector<std::byte>(guard_bytes + ring_bytes + guard_bytes, guard);

  [[nodiscard]] std::span<std::byte> data() { return std::span(bytes).subspan(guard_bytes, ring_bytes); }
  [[nodiscard]] bool guards_are_whole() const {
    const auto whole = [](std::span<const std::byte> part) {
      return std::all_of(part.begin(), part.end(), [](std::byte each) { return each == guard; });
    };
    return whole(std::span(bytes).first(guard_bytes)) && whole(std::span(bytes).last(guard_bytes));
  }
};

iovec part_of(std::vector<std::byte>& bytes, std::size_t from, std::size_t count) {
  return {bytes.data() + from, std::min(count, bytes.size() - from)};
}

std::size_t write(d::ring_writer& to, std::vector<std::byte>& bytes, bool& wake) {
  const iovec all = part_of(bytes, 0, bytes.size());
  return to.write({&all, 1}, wake);
}

std::size_t read(d::ring_reader& from, std::vector<std::byte>& bytes, bool& wake) {
  const iovec all = part_of(bytes, 0, bytes.size());
  return from.read({&all, 1}, wake);
}

std::vector<std::byte> numbered(std::size_t count) {
  std::vector<std::byte> result(count);
  for (std::size_t i = 0; i != count; ++i) result[i] = static_cast<std::byte>(i * 31 + i / 256);
  return result;
}

}  // namespace

TEST_CASE("a ring carries bytes in order, in pieces of any size, between two threads") {
  ring_memory memory;
  auto sent = numbered(3'000'000);
  std::vector<std::byte> got(sent.size());
  std::thread sender([&] {
    d::ring_writer out(memory.control, memory.data());
    std::mt19937 random(1);
    bool wake = false;
    for (std::size_t at = 0; at < sent.size();) {
      std::array<iovec, 3> parts;
      std::size_t end = at;
      for (iovec& part : parts) {
        part = part_of(sent, end, random() % 3000);
        end += part.iov_len;
      }
      const auto written = out.write(parts, wake);
      at += written;
      if (written == 0) std::this_thread::yield();
    }
  });
  d::ring_reader in(memory.control, memory.data());
  std::mt19937 random(2);
  bool wake = false;
  for (std::size_t at = 0; at < got.size();) {
    const std::array<iovec, 2> parts{part_of(got, at, random() % 5000), iovec{}};
    const auto count = in.read(parts, wake);
    at += count;
    if (count == 0) std::this_thread::yield();
  }
  sender.join();
  CHECK(got == sent);
  CHECK_FALSE(in.broken());
  CHECK(memory.guards_are_whole());
}

TEST_CASE("a full ring takes no more, an empty one gives none") {
  ring_memory memory;
  d::ring_writer out(memory.control, memory.data());
  d::ring_reader in(memory.control, memory.data());
  bool wake = false;
  auto much = numbered(ring_bytes + 100);
  CHECK(out.room() == ring_bytes);
  CHECK(write(out, much, wake) == ring_bytes);
  CHECK(write(out, much, wake) == 0);
  CHECK(out.room() == 0);
  std::vector<std::byte> got(2 * ring_bytes);
  CHECK(read(in, got, wake) == ring_bytes);
  CHECK(std::equal(got.begin(), got.begin() + ring_bytes, much.begin()));
  CHECK(read(in, got, wake) == 0);
  CHECK_FALSE(out.broken());
  CHECK_FALSE(in.broken());
  CHECK_FALSE(wake);  // neither end slept
}

TEST_CASE("an end is woken once, and only after it announced that it sleeps") {
  ring_memory memory;
  d::ring_writer out(memory.control, memory.data());
  d::ring_reader in(memory.control, memory.data());
  auto some = numbered(10);
  std::vector<std::byte> got(ring_bytes);
  const auto wakes_reader = [&] {
    bool wake = false;
    REQUIRE(write(out, some, wake) == some.size());
    return wake;
  };
  CHECK_FALSE(wakes_reader());
  CHECK(in.announce_sleep());  // bytes are there
  bool wake = false;
  CHECK(read(in, got, wake) == some.size());
  CHECK_FALSE(in.announce_sleep());
  CHECK(wakes_reader());
  CHECK_FALSE(wakes_reader());
  CHECK(in.announce_sleep());
  in.withdraw_sleep();
  CHECK_FALSE(wakes_reader());

  while (write(out, some, wake) != 0) {
  }
  CHECK_FALSE(out.announce_sleep());
  wake = false;
  CHECK(read(in, got, wake) != 0);
  CHECK(wake);
  CHECK(out.announce_sleep());
}

TEST_CASE("a reader never reads beyond a ring, whatever index the writer claims") {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t claimed : {std::uint64_t{ring_bytes + 1}, std::uint64_t{1} << 40U, most, most - 5}) {
    CAPTURE(claimed);
    ring_memory memory;
    d::ring_reader in(memory.control, memory.data());
    memory.control.written = claimed;
    std::vector<std::byte> got(4 * ring_bytes);
    bool wake = false;
    CHECK(read(in, got, wake) == 0);
    CHECK(in.broken());
    memory.control.written = 10;  // an honest index does not mend it
    CHECK(read(in, got, wake) == 0);
  }
}

TEST_CASE("an index that goes back breaks a ring for its reader") {
  ring_memory memory;
  d::ring_reader in(memory.control, memory.data());
  std::vector<std::byte> got(ring_bytes);
  bool wake = false;
  memory.control.written = 100;
  CHECK(read(in, got, wake) == 100);
  memory.control.written = 50;
  CHECK(read(in, got, wake) == 0);
  CHECK(in.broken());
}

TEST_CASE("a writer never writes over what was not read, whatever index the reader claims") {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  auto some = numbered(ring_bytes);
  for (const std::uint64_t claimed : {std::uint64_t{ring_bytes + 1}, std::uint64_t{1} << 40U, most}) {
    CAPTURE(claimed);
    ring_memory memory;
    d::ring_writer out(memory.control, memory.data());
    bool wake = false;
    REQUIRE(write(out, some, wake) == ring_bytes);
    memory.control.consumed = claimed;  // more than was written
    CHECK(write(out, some, wake) == 0);
    CHECK(out.broken());
    CHECK(memory.guards_are_whole());
  }
  ring_memory memory;
  d::ring_writer out(memory.control, memory.data());
  bool wake = false;
  REQUIRE(write(out, some, wake) == ring_bytes);
  memory.control.consumed = 1000;
  CHECK(out.room() == 1000);
  memory.control.consumed = 999;  // fewer than before
  CHECK(out.room() == 0);
  CHECK(out.broken());
}

TEST_CASE("messages begin at every offset of a ring") {
  ring_memory memory;
  d::ring_writer out(memory.control, memory.data());
  d::ring_reader in(memory.control, memory.data());
  auto sent = numbered(ring_bytes - 1);
  std::vector<std::byte> got(sent.size());
  bool wake = false;
  std::size_t wrong = 0;
  constexpr std::uint64_t rounds = 20'000;  // each begins at another offset
  for (std::uint64_t i = 0; i != rounds; ++i) {
    if (write(out, sent, wake) != sent.size() || read(in, got, wake) != got.size() || got != sent) ++wrong;
  }
  CHECK(wrong == 0);
  CHECK(memory.control.written == rounds * sent.size());
}

}  // namespace ring_test
