// Collectives in a segment, without workers: each member is a thread, over ordinary memory of this process, so that the thread
// sanitizer sees every access.

#include "group/segment_run.hpp"

#include <atomic>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include "expect_error.hpp"

namespace segment_run_test {

using ferry::collective;
using ferry::dtype;
using ferry::errc;
using ferry::reduce_op;
using ferry::detail::collective_signature;
using ferry::detail::group_segment;
using ferry::detail::member_flags;
using ferry::detail::segment_job;
using ferry::detail::segment_layout;
using ferry::detail::segment_run;
using ferry::detail::signature_block;

struct alignas(128) line {
  std::byte bytes[128] = {};
};
// Memory that several members share.
class shared_lines {
 public:
  explicit shared_lines(const segment_layout& layout) : lines_(layout.total() / sizeof(line)) {}
  [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(lines_)); }

 private:
  std::vector<line> lines_;
};

constexpr collective kinds[] = {collective::barrier,   collective::broadcast,  collective::all_reduce,
                                collective::reduce,    collective::all_gather, collective::reduce_scatter,
                                collective::all_to_all};

std::int32_t element(int member, unsigned round, std::int64_t index) {
  return static_cast<std::int32_t>(
      (static_cast<unsigned>(member) * 7919U + round * 104729U + static_cast<unsigned>(index) * 31U) % 1009U);
}

// What member `rank` has afterwards at `index`.
std::int32_t expected(collective op, int n, int rank, int root, unsigned round, std::int64_t length,
                      std::int64_t index) {
  const auto sum = [&](std::int64_t at) {
    std::int32_t total = 0;
    for (int each = 0; each != n; ++each) total += element(each, round, at);
    return total;
  };
  switch (op) {
    case collective::broadcast: return element(root, round, index);
    case collective::all_reduce: return sum(index);
    case collective::reduce: return rank == root ? sum(index) : element(rank, round, index);
    case collective::all_gather: return element(static_cast<int>(index / length), round, index % length);
    case collective::reduce_scatter: return sum(rank * length + index);
    case collective::all_to_all:
      return element(static_cast<int>(index / length), round, rank * length + index % length);
    default: return 0;
  }
}

void run_member(const group_segment& memory, int rank, unsigned seed, unsigned rounds, std::atomic<int>& wrong) {
  std::mt19937 random(seed);
  const int n = memory.members();
  std::uint64_t base = 0;
  for (unsigned round = 0; round != rounds; ++round) {
    const collective op = kinds[random() % std::size(kinds)];
    const auto length = static_cast<std::int64_t>(random() % 3 == 0 ? random() % 40 : random() % 5000);
    const int root = static_cast<int>(random() % static_cast<unsigned>(n));
    const bool in_shares = op == collective::reduce_scatter || op == collective::all_to_all;
    std::vector<std::int32_t> from(static_cast<std::size_t>(in_shares ? n * length : length));
    for (std::size_t i = 0; i != from.size(); ++i) from[i] = element(rank, round, static_cast<std::int64_t>(i));
    std::vector<std::int32_t> apart(
        static_cast<std::size_t>(op == collective::all_gather || op == collective::all_to_all ? n * length : length));
    const bool in_place = op == collective::broadcast || op == collective::all_reduce || op == collective::reduce;
    if (op == collective::all_gather && length != 0) {
      std::memcpy(apart.data() + rank * length, from.data(), from.size() * sizeof(std::int32_t));
    }
    std::vector<std::int32_t>& to = in_place ? from : apart;
    segment_job job{op,
                    reduce_op::sum,
                    dtype::i32,
                    root,
                    reinterpret_cast<const std::byte*>(from.data()),
                    reinterpret_cast<std::byte*>(to.data()),
                    length};
    if (op == collective::barrier) job.elements = 0;
    collective_signature signature;
    signature.op = op;
    signature.type = dtype::i32;
    signature.shape = {length};
    segment_run run(memory, rank, job, signature_block::encode(round, signature), base, round);
    for (;;) {
      const auto state = run.advance([](int) {});
      if (state == segment_run::state::finished) break;
      if (state != segment_run::state::blocked) {
        ++wrong;
        return;
      }
      std::this_thread::yield();
    }
    base += run.pieces();
    if (op == collective::barrier) continue;
    for (std::size_t i = 0; i != to.size(); ++i) {
      if (to[i] != expected(op, n, rank, root, round, length, static_cast<std::int64_t>(i))) ++wrong;
    }
  }
}

TEST_CASE("segment_run: random collectives of threads that share memory equal a plain model") {
  for (const int n : {2, 3, 5}) {
    for (const std::size_t room : {std::size_t{8} << 10U, std::size_t{64} << 10U}) {
      const auto layout = segment_layout::make(n, room);
      REQUIRE(layout.has_value());
      shared_lines lines(*layout);
      const group_segment memory(*layout, lines.bytes());
      std::atomic<int> wrong = 0;
      {
        std::vector<std::jthread> members;
        for (int rank = 0; rank != n; ++rank) {
          members.emplace_back([&, rank] { run_member(memory, rank, static_cast<unsigned>(n), 60, wrong); });
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("segment_run: what another member writes is looked at before it is believed") {
  const auto layout = segment_layout::make(2, 64U << 10U);
  REQUIRE(layout.has_value());
  const auto begin = [&](shared_lines& lines, std::vector<float>& own) {
    const segment_job job{collective::all_reduce,
                          reduce_op::sum,
                          dtype::f32,
                          -1,
                          reinterpret_cast<const std::byte*>(own.data()),
                          reinterpret_cast<std::byte*>(own.data()),
                          static_cast<std::int64_t>(own.size())};
    collective_signature signature;
    signature.op = collective::all_reduce;
    signature.type = dtype::f32;
    signature.shape = {static_cast<std::int64_t>(own.size())};
    const group_segment memory(*layout, lines.bytes());
    return std::tuple(memory, job, signature);
  };
  std::vector<float> own(100, 1.0F);
  SUBCASE("numbers far ahead") {
    for (const std::uint64_t number : {std::uint64_t{5}, std::uint64_t{1} << 40U, ~std::uint64_t{0}}) {
      for (std::uint64_t member_flags::*which : {&member_flags::in, &member_flags::done, &member_flags::out}) {
        shared_lines lines(*layout);
        const auto [memory, job, signature] = begin(lines, own);
        segment_run run(memory, 0, job, signature_block::encode(0, signature), 0, 0);
        memory.flags(1).*which = number;
        CHECK(run.advance([](int) {}) == segment_run::state::broken);
        CHECK(run.culprit() == 1);
      }
    }
  }
  SUBCASE("another call") {
    shared_lines lines(*layout);
    auto [memory, job, signature] = begin(lines, own);
    segment_run run(memory, 0, job, signature_block::encode(0, signature), 0, 0);
    signature.shape = {7, 9};
    memory.signature(1, 0) = signature_block::encode(0, signature);
    memory.flags(1).in = 1;
    CHECK(run.advance([](int) {}) == segment_run::state::differs);
    REQUIRE(run.theirs().has_value());
    CHECK(run.theirs()->shape == std::vector<std::int64_t>{7, 9});
    CHECK(own[99] == 1.0F);
  }
  SUBCASE("a member that has failed it is needed for the error") {
    shared_lines lines(*layout);
    auto [memory, job, signature] = begin(lines, own);
    const segment_run run(memory, 0, job, signature_block::encode(0, signature), 0, 0);
    memory.flags(1).in = memory.flags(1).done = memory.flags(1).out = run.pieces();
    CHECK_FALSE(run.needs(1));
    memory.flags(1).failed = 1;
    CHECK(run.needs(1));
  }
  SUBCASE("a call of another number, or what is none") {
    for (const std::uint64_t word : {std::uint64_t{1}, std::uint64_t{0}}) {
      shared_lines lines(*layout);
      auto [memory, job, signature] = begin(lines, own);
      segment_run run(memory, 0, job, signature_block::encode(0, signature), 0, 0);
      signature_block theirs = signature_block::encode(word, signature);
      if (word == 0) theirs.words[4] = 1000;  // axes
      memory.signature(1, 0) = theirs;
      memory.flags(1).in = 1;
      CHECK(run.advance([](int) {}) == (word == 0 ? segment_run::state::broken : segment_run::state::apart));
    }
  }
}

TEST_CASE("group_segment: only sealed memory of the right size is taken") {
  const auto layout = segment_layout::make(2, 64U << 10U);
  REQUIRE(layout.has_value());
  const auto [made, descriptor] = group_segment::create(*layout);
  const auto other = group_segment::adopt(descriptor, *layout);
  made->slot(1, 3)[5] = std::byte{42};
  CHECK(other->slot(1, 3)[5] == std::byte{42});
  expect_error(errc::handshake_failed, "bytes, not",
               [&] { (void)group_segment::adopt(descriptor, *segment_layout::make(3, 64U << 10U)); });
  CHECK_FALSE(segment_layout::make(2, 4096).has_value());
  CHECK_FALSE(segment_layout::make(1, 1U << 20U).has_value());
  CHECK_FALSE(segment_layout::make(65, 1U << 20U).has_value());
}

}  // namespace segment_run_test
