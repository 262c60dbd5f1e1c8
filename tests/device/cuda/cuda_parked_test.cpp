// Memory that is given up while streams use it: what waits for what.

#include <atomic>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/device/cuda.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>

#include "captured_log.hpp"
#include "expect_error.hpp"
#include "fake_cuda.hpp"

namespace cuda_parked_test {

using fake_cuda::call;
using ferry::device;
using ferry::device_kind;
using ferry::device_memory;
using ferry::errc;
using ferry::stream;
using traits = ferry::device_traits<ferry::cuda>;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr std::size_t large = 30 * mebibyte;  // two fit

// Holds a stream up until it is let go.
class held_stream {
 public:
  explicit held_stream(device where) : on_(ferry::pool_stream(where)) {
    on_.call_on_host(
        [](void* argument) {
          auto& self = *static_cast<held_stream*>(argument);
          while (!self.free_) std::this_thread::yield();
          self.over_ = true;
        },
        this);
  }
  held_stream(const held_stream&) = delete;
  held_stream& operator=(const held_stream&) = delete;
  ~held_stream() {
    let_go();
    while (!over_) std::this_thread::yield();
  }
  void let_go() { free_ = true; }
  [[nodiscard]] const stream& on() const { return on_; }

 private:
  stream on_;
  std::atomic<bool> free_{false};
  std::atomic<bool> over_{false};
};

struct all_memory {
  explicit all_memory(device of) : where(of) { fake_cuda::set_memory(64 * mebibyte); }
  ~all_memory() {
    fake_cuda::drain();
    ferry::device_memory_trim(where);
    CHECK(ferry::get_device_memory_stats(where).reserved_bytes == 0);
  }
  device where;
};

}  // namespace

TEST_CASE("a stream that is held up keeps its own memory, not that of others") {
  const device where{device_kind::cuda, 6};
  const all_memory whole(where);
  const stream home = ferry::pool_stream(where);
  const stream quick = ferry::pool_stream(where);
  held_stream held(where);
  std::optional<device_memory> first(std::in_place, home, large);
  std::optional<device_memory> second(std::in_place, home, large);
  first->record_use(held.on());
  second->record_use(quick);
  traits::fill(where, second->data(), 1, large, quick.native<ferry::cuda>());
  // In this order, so that the second would stand behind the first in a line.
  first.reset();
  second.reset();
  const auto waits = ferry::get_device_memory_stats(where).memory_waits;
  quick.synchronize();
  home.synchronize();
  const device_memory third(home, large);  // the memory of the second
  CHECK(third.data() != nullptr);
  const auto stats = ferry::get_device_memory_stats(where);
  CHECK(stats.parked_blocks == 1);
  CHECK(stats.parked_bytes == large);
  CHECK(stats.memory_waits == waits);
}

TEST_CASE("an allocation that would fail waits for memory that was given up, and is counted") {
  const device where{device_kind::cuda, 6};
  const all_memory whole(where);
  const stream home = ferry::pool_stream(where);
  held_stream held(where);
  const auto waits = ferry::get_device_memory_stats(where).memory_waits;
  for (int i = 0; i != 2; ++i) {
    device_memory block(home, large);
    block.record_use(held.on());
  }
  std::thread helper([&] {
    while (ferry::get_device_memory_stats(where).memory_waits == waits) std::this_thread::yield();
    held.let_go();
  });
  const device_memory next(home, large);
  helper.join();
  CHECK(next.data() != nullptr);
  CHECK(ferry::get_device_memory_stats(where).memory_waits == waits + 1);
}

TEST_CASE("the wait for memory is bounded, and the error says what was waited for") {
  const device where{device_kind::cuda, 6};
  const all_memory whole(where);
  const stream home = ferry::pool_stream(where);
  held_stream held(where);
  for (int i = 0; i != 2; ++i) {
    device_memory block(home, large);
    block.record_use(held.on());
  }
  expect_error(errc::out_of_memory, "; 62914560 bytes more were given up, but streams have used them for 5 s",
               [&] { (void)device_memory(home, large); });
}

TEST_CASE("memory is looked after a few blocks at a time, and no look waits") {
  const device where{device_kind::cuda, 6};
  const stream home = ferry::pool_stream(where);
  held_stream held(where);
  const auto queries = fake_cuda::calls(call::event_query);
  const auto synchronizations = fake_cuda::host_synchronizations();
  constexpr unsigned count = 500;
  for (unsigned i = 0; i != count; ++i) {
    device_memory block(home, 1000);
    block.record_use(held.on());
  }
  CHECK(fake_cuda::host_synchronizations() == synchronizations);
  CHECK(fake_cuda::calls(call::event_query) - queries <= 3 * 8 * count);
  CHECK(ferry::get_device_memory_stats(where).parked_blocks == count);
  held.let_go();
  fake_cuda::drain();
  CHECK(ferry::get_device_memory_stats(where).parked_blocks == 0);
}

TEST_CASE(
    "small blocks that were parked are used again by every stream, without a synchronization and without growth") {
  const device where{device_kind::cuda, 6};
  const all_memory whole(where);
  ferry::device_memory_trim(where);
  constexpr std::size_t small = 1000;
  const stream side = ferry::pool_stream(where);
  const auto use_on = [&](const stream& home) {
    device_memory block(home, small);
    side.wait(home);
    block.record_use(side);
    const fake_cuda::pause pause;  // so that the block is parked
    traits::fill(where, block.data(), 1, small, side.native<ferry::cuda>());
    { const device_memory given_up(std::move(block)); }
    CHECK(ferry::get_device_memory_stats(where).parked_blocks == 1);
  };
  const auto before = fake_cuda::host_synchronizations();
  for (int i = 0; i != 100; ++i) {
    if (const stream home = ferry::pool_stream(where); home != side) use_on(home);
    fake_cuda::drain();
    CHECK(ferry::get_device_memory_stats(where).parked_blocks == 0);
    CHECK(ferry::get_device_memory_stats(where).reserved_bytes <= 2 * 1024);
  }
  CHECK(fake_cuda::host_synchronizations() == before);
}

TEST_CASE("a stream waits once for what was freed, however often it allocates") {
  const device where{device_kind::cuda, 6};
  const stream home = ferry::pool_stream(where);
  const stream other = ferry::pool_stream(where);
  {
    const fake_cuda::pause pause;
    device_memory block(home, 1000);
    traits::fill(where, block.data(), 1, 1000, other.native<ferry::cuda>());
    block.record_use(other);
  }
  fake_cuda::drain();
  (void)ferry::get_device_memory_stats(where);  // frees it
  const auto marks = fake_cuda::calls(call::event_record_of_frees);
  const auto waits = fake_cuda::calls(call::stream_wait_event_of_frees);
  for (int i = 0; i != 10; ++i) {
    (void)device_memory(home, 1000);
  }
  CHECK(fake_cuda::calls(call::event_record_of_frees) == marks + 1);
  CHECK(fake_cuda::calls(call::stream_wait_event_of_frees) == waits + 1);
  fake_cuda::drain();
}

TEST_CASE("large blocks are used again by every stream that comes after they are free, without a wait for anything") {
  const device where{device_kind::cuda, 6};
  const all_memory whole(where);
  ferry::device_memory_trim(where);
  for (int i = 0; i != 10; ++i) {
    (void)device_memory(ferry::pool_stream(where), large);
    fake_cuda::drain();
    CHECK(ferry::get_device_memory_stats(where).reserved_bytes == large);
  }
}

TEST_CASE("a small block comes from the pool of large ones where there is no other memory, also on a busy stream") {
  const device where{device_kind::cuda, 6};
  const all_memory whole(where);
  ferry::device_memory_trim(where);
  const stream on = ferry::pool_stream(where);
  const device_memory most(on, 63 * mebibyte);
  const fake_cuda::pause pause;
  (void)device_memory(on, mebibyte);
  CHECK(device_memory(on, mebibyte - 1).data() != nullptr);
}

TEST_CASE("memory that one pool keeps unused does not make an allocation from the other fail") {
  const device where{device_kind::cuda, 6};
  const all_memory whole(where);
  ferry::device_memory_trim(where);
  const stream on = ferry::pool_stream(where);
  constexpr std::size_t small = mebibyte / 2;
  const auto have_small = [&](std::size_t bytes) {
    std::vector<device_memory> all;
    for (std::size_t i = 0; i != bytes / small; ++i) all.emplace_back(on, small);
    CHECK(ferry::get_device_memory_stats(where).used_bytes == bytes);
  };
  {
    const device_memory rest(on, 4 * mebibyte);
    (void)device_memory(on, 2 * large);
    fake_cuda::drain();
    CHECK(device_memory(on, small).data() != nullptr);
  }
  fake_cuda::drain();
  ferry::device_memory_trim(where);
  have_small(40 * mebibyte);
  fake_cuda::drain();
  CHECK(device_memory(on, 2 * large).data() != nullptr);
  fake_cuda::drain();
  // What the error says is of both.
  const device_memory kept(on, 1000);
  const device_memory most(on, 2 * large);
  expect_error(errc::out_of_memory, "(62915584 bytes are in use by tensors of this process",
               [&] { (void)device_memory(on, large); });
}

TEST_CASE(
    "memory that was freed on streams which have got there is trimmed and used, although no thread waited for them") {
  const device where{device_kind::cuda, 6};
  const all_memory whole(where);
  const stream here = ferry::pool_stream(where);
  const stream there = ferry::pool_stream(where);
  const stream main = ferry::default_stream(where);
  const auto free_some = [&] {
    for (const stream& on : {here, there, main}) (void)device_memory(on, 20 * mebibyte);
    fake_cuda::drain();
  };
  free_some();
  CHECK(ferry::get_device_memory_stats(where).parked_blocks == 0);
  {
    const device_memory large(here, 60 * mebibyte);
    CHECK(large.data() != nullptr);
  }
  fake_cuda::drain();
  ferry::device_memory_trim(where);
  CHECK(ferry::get_device_memory_stats(where).reserved_bytes == 0);
  free_some();
  ferry::device_memory_trim(where);
  CHECK(ferry::get_device_memory_stats(where).reserved_bytes == 0);
}

TEST_CASE("trimming neither waits for a stream that is busy nor disturbs one that is captured") {
  const device where{device_kind::cuda, 6};
  const all_memory whole(where);
  ferry::device_memory_trim(where);
  const stream busy = ferry::pool_stream(where);
  const stream captured = ferry::pool_stream(where);
  const stream idle = ferry::pool_stream(where);
  (void)device_memory(captured, 10 * mebibyte);
  (void)device_memory(idle, 12 * mebibyte);
  fake_cuda::drain();
  const device_memory used(busy, 1000);
  {
    const fake_cuda::pause pause;
    (void)device_memory(busy, 14 * mebibyte);
    traits::fill(where, used.data(), 1, used.size(), busy.native<ferry::cuda>());
    REQUIRE(fake_cuda::begin_capture(captured.native<ferry::cuda>()) == 0);
    ferry::device_memory_trim(where);
    CHECK(fake_cuda::busy());
    const auto reserved = ferry::get_device_memory_stats(where).reserved_bytes;
    CHECK(reserved >= 24 * mebibyte);
    CHECK(reserved < 25 * mebibyte);
    CHECK(fake_cuda::end_capture(captured.native<ferry::cuda>()).status == 0);
  }
  fake_cuda::drain();
}

TEST_CASE("memory used on a stream that has been destroyed is leaked, with a word") {
  const device where{device_kind::cuda, 6};
  ferry_test::captured_log log;
  CUstream_st* const made = traits::create_stream(where);
  const std::size_t in_use = fake_cuda::blocks_in_use(6);
  {
    device_memory block(ferry::pool_stream(where), 1000);
    block.record_use(stream::from_native<ferry::cuda>(made, 6));
    traits::destroy_stream(where, made);
  }
  CHECK(fake_cuda::blocks_in_use(6) == in_use + 1);
  CHECK(log.has("1000 bytes of cuda:6 are leaked rather than used again early"));
  CHECK(log.has("was a stream or an event destroyed that ferry, or a tensor, still needs?"));
}

}  // namespace cuda_parked_test
