#pragma once

// Part of the test kit: the suite that every kind of device must pass, over its device_traits and ferry's types on top
// of them. For a kind of your own:
//
//   TEST_CASE("npu conforms") { ferry::test_kit::device_conformance<npu>(); }
//
// It needs one device; it uses a second one if there is one.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <ostream>  // for doctest's printing of an errc
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/device.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/device/traits.hpp>

namespace ferry::test_kit {

using byte_vector = std::vector<unsigned char>;

/// Bytes that depend on the index and on `seed`.
inline byte_vector pattern(std::size_t size, std::size_t seed) {
  byte_vector result(size);
  for (std::size_t i = 0; i != size; ++i) result[i] = static_cast<unsigned char>(i * 31 + seed * 101 + 7);
  return result;
}

/// Device memory and operations on it, on one device.
template <class Tag>
struct device_under_test {
  using traits = device_traits<Tag>;
  static device number(int index) { return {traits::kind, index}; }
  static auto handle(const stream& on) { return on.template native<Tag>(); }

  static void upload(const stream& on, void* to, const byte_vector& bytes) {
    traits::copy(on.device(), to, {}, bytes.data(), bytes.size(), on.device(), handle(on));
  }
  /// After all previous work on `on`.
  static byte_vector download(const stream& on, const void* from, std::size_t size) {
    byte_vector bytes(size);
    traits::copy({}, bytes.data(), on.device(), from, size, on.device(), handle(on));
    on.synchronize();
    return bytes;
  }
  static void fill(const stream& on, void* memory, unsigned char value, std::size_t size) {
    traits::fill(on.device(), memory, value, size, handle(on));
  }
  static void copy(const stream& on, void* to, device to_where, const void* from, device from_where, std::size_t size) {
    traits::copy(to_where, to, from_where, from, size, on.device(), handle(on));
  }
};

template <class Tag>
void check_device_identity() {
  using traits = device_traits<Tag>;
  static_assert(device_type<Tag>);
  REQUIRE(traits::count() >= 1);
  CHECK(device_kind_name(traits::kind) == traits::name);
  CHECK(&operations_of(traits::kind) == &operations_of(traits::kind));
  CHECK(operations_of(traits::kind).name == traits::name);
  CHECK(operations_of(traits::kind).count() == traits::count());
  for (int index = 0; index != traits::count(); ++index) {
    const device where{traits::kind, index};
    CHECK(parse_device(to_string(where)) == where);
    check_device(where);
    CHECK(default_stream(where).device() == where);
    CHECK(traits::peer_access(where, where));
  }
  for (const int index : {-1, traits::count()}) {
    const device where{traits::kind, index};
    CHECK_THROWS_AS(check_device(where), error);
    CHECK_THROWS_AS((void)default_stream(where), error);
    CHECK_THROWS_AS((void)pool_stream(where), error);
    CHECK_THROWS_AS((void)current_stream(where), error);
    CHECK_THROWS_AS((device_guard{where}), error);
  }
}

template <class Tag>
void check_device_memory() {
  using test = device_under_test<Tag>;
  const stream on = pool_stream(test::number(0));
  CHECK(device_memory().data() == nullptr);
  CHECK(device_memory(on, 0).data() == nullptr);
  std::vector<std::pair<device_memory, byte_vector>> blocks;
  for (const std::size_t size : {1, 63, 64, 65, 1000, 4096, 100'000}) {
    device_memory block(on, size);
    REQUIRE(block.data() != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(block.data()) % 64 == 0);
    CHECK(block.size() == size);
    CHECK(block.device() == on.device());
    CHECK(block.stream() == on);
    byte_vector bytes = pattern(size, size);
    test::upload(on, block.data(), bytes);
    blocks.emplace_back(std::move(block), std::move(bytes));
  }
  for (const auto& [block, bytes] : blocks) CHECK(test::download(on, block.data(), bytes.size()) == bytes);
  device_memory moved = std::move(blocks.back().first);
  CHECK(blocks.back().first.data() == nullptr);
  CHECK(test::download(on, moved.data(), moved.size()) == blocks.back().second);

  const device_memory_stats before = get_device_memory_stats(on.device());
  CHECK(before.used_bytes >= 100'000);
  CHECK(before.peak_used_bytes >= before.used_bytes);
  CHECK(before.blocks >= 7);
  moved = device_memory();
  const device_memory_stats after = get_device_memory_stats(on.device());
  CHECK(after.used_bytes == before.used_bytes - 100'000);
  CHECK(after.blocks == before.blocks - 1);
  CHECK(after.total_allocations == before.total_allocations);
  device_memory_trim(on.device());
}

template <class Tag>
void check_stream_order() {
  using test = device_under_test<Tag>;
  constexpr std::size_t size = 5000;
  const device where = test::number(0);
  const stream on = pool_stream(where);
  const stream side = pool_stream(where);
  const device_memory a(on, size);
  const device_memory b(on, size);
  const device_memory c(on, size);
  side.wait(on);  // the blocks exist in the order of `on`

  SUBCASE("a stream executes its work in order") {
    for (unsigned char round = 1; round != 20; ++round) {
      test::fill(on, a.data(), round, size);
      test::copy(on, b.data(), where, a.data(), where, size);
      test::fill(on, a.data(), 0xff, size);
      CHECK(test::download(on, b.data(), size) == byte_vector(size, round));
    }
  }
  SUBCASE("a stream waits for an event of another one") {
    for (unsigned char round = 1; round != 50; ++round) {
      test::fill(on, a.data(), 0, size);
      test::fill(on, a.data(), round, size);
      const event written = on.record();
      side.wait(written);
      test::copy(side, b.data(), where, a.data(), where, size);
      const byte_vector seen = test::download(side, b.data(), size);
      CHECK(seen == byte_vector(size, round));
      CHECK(written.done());
      on.wait(side);
    }
  }
  SUBCASE("a stream waits for all work of another one") {
    for (unsigned char round = 1; round != 50; ++round) {
      test::fill(on, a.data(), round, size);
      side.wait(on);
      test::copy(side, b.data(), where, a.data(), where, size);
      on.wait(side);
      test::fill(on, a.data(), 0, size);
      CHECK(test::download(side, b.data(), size) == byte_vector(size, round));
    }
  }
  SUBCASE("the default stream and others wait for each other") {
    const stream base = default_stream(where);
    base.wait(on);
    for (unsigned char round = 1; round != 20; ++round) {
      test::fill(base, a.data(), round, size);
      side.wait(base);
      test::copy(side, b.data(), where, a.data(), where, size);
      base.wait(side);
      CHECK(test::download(base, b.data(), size) == byte_vector(size, round));
    }
  }
  SUBCASE("an event that is recorded again still blocks earlier waits") {
    event mark;
    CHECK(mark.done());
    mark.synchronize();
    side.wait(mark);
    for (unsigned char round = 1; round != 20; ++round) {
      test::fill(on, a.data(), round, size);
      mark.record(on);
      side.wait(mark);
      test::copy(side, b.data(), where, a.data(), where, size);
      on.wait(side);
      test::fill(on, c.data(), 1, size);
      mark.record(on);
      CHECK(test::download(side, b.data(), size) == byte_vector(size, round));
      mark.synchronize();
      CHECK(mark.done());
    }
    event other = std::move(mark);
    mark = other.device() == where ? on.record() : event();
    mark.synchronize();
    CHECK(other.done());
  }
  SUBCASE("a host function is called in stream order") {
    struct seen {
      std::atomic<int> calls = 0;
      std::vector<int> order;
    };
    seen all;
    struct one {
      seen* into;
      int number;
    };
    std::array<one, 10> each{};
    for (int i = 0; i != 10; ++i) {
      each[static_cast<std::size_t>(i)] = {&all, i};
      test::fill(on, a.data(), 1, size);
      on.call_on_host(
          [](void* argument) {
            const one* self = static_cast<const one*>(argument);
            self->into->order.push_back(self->number);
            ++self->into->calls;
          },
          &each[static_cast<std::size_t>(i)]);
    }
    on.synchronize();
    CHECK(all.calls == 10);
    CHECK(std::is_sorted(all.order.begin(), all.order.end()));
    CHECK(on.done());
  }
}

template <class Tag>
void check_streams_as_values() {
  using traits = device_traits<Tag>;
  using test = device_under_test<Tag>;
  static_assert(!std::is_constructible_v<stream, int>);
  static_assert(!std::is_constructible_v<stream, std::nullptr_t>);
  static_assert(!std::is_constructible_v<stream, void*>);
  static_assert(!std::is_convertible_v<typename traits::stream_handle, stream>);
  static_assert(!std::is_copy_constructible_v<event>);
  const device where = test::number(0);
  const stream on = pool_stream(where);
  CHECK(stream::from_native<Tag>(on.template native<Tag>(), 0) == on);
  CHECK(default_stream(where) == default_stream(where));
  CHECK(stream::from_native<Tag>(default_stream(where).template native<Tag>(), 0) == default_stream(where));
  const typename traits::stream_handle none = nullptr;
  CHECK(stream::from_native<Tag>(none, 0) == default_stream(where));

  std::vector<stream> streams;
  for (std::size_t i = 0; i != stream_pool_size(); ++i) streams.push_back(pool_stream(where));
  for (const stream& each : streams) CHECK(each.device() == where);
  if (!operations_of(traits::kind).immediate) {
    CHECK(std::find(streams.begin(), streams.end(), default_stream(where)) == streams.end());
    CHECK(std::any_of(streams.begin(), streams.end(), [&](const stream& each) { return each != streams[0]; }));
    event mark = on.record();
    CHECK(mark.device() == where);
    CHECK(mark.template native<Tag>() != nullptr);
  }
}

template <class Tag>
void check_current() {
  using traits = device_traits<Tag>;
  using test = device_under_test<Tag>;
  const device where = test::number(0);
  const stream base = default_stream(where);
  CHECK(current_stream(where) == base);
  const stream a = pool_stream(where);
  const stream b = pool_stream(where);
  {
    const stream_guard first(a);
    CHECK(current_stream(where) == a);
    {
      const stream_guard second(b);
      CHECK(current_stream(where) == b);
      const stream_guard third(base);
      CHECK(current_stream(where) == base);
    }
    CHECK(current_stream(where) == a);
    std::thread([&] { CHECK(current_stream(where) == base); }).join();
    if (traits::count() > 1) CHECK(current_stream(test::number(1)) == default_stream(test::number(1)));
  }
  CHECK(current_stream(where) == base);
  CHECK(set_current_stream(a) == base);
  CHECK(set_current_stream(base) == a);

  if (traits::count() > 1 && !operations_of(traits::kind).immediate) {
    const device_guard outer(test::number(0));
    CHECK(current_device(traits::kind) == test::number(0));
    {
      const device_guard inner(test::number(1));
      CHECK(current_device(traits::kind) == test::number(1));
      // Work on another device does not change the current one.
      pool_stream(where).synchronize();
      CHECK(current_device(traits::kind) == test::number(1));
    }
    CHECK(current_device(traits::kind) == test::number(0));
  }
}

template <class Tag>
void check_two_devices() {
  using traits = device_traits<Tag>;
  using test = device_under_test<Tag>;
  if (traits::count() < 2) return;
  constexpr std::size_t size = 3000;
  const stream here = pool_stream(test::number(0));
  const stream there = pool_stream(test::number(1));
  const device_memory a(here, size);
  const device_memory b(there, size);
  for (std::size_t round = 0; round != 20; ++round) {
    const byte_vector bytes = pattern(size, round);
    test::upload(here, a.data(), bytes);
    here.wait(there);  // `b` may be written now
    test::copy(here, b.data(), there.device(), a.data(), here.device(), size);
    there.wait(here);
    CHECK(test::download(there, b.data(), size) == bytes);
  }
}

/// Blocks freed while others still use them are not reused before.
template <class Tag>
void check_memory_is_used_again_in_order() {
  using test = device_under_test<Tag>;
  constexpr std::size_t size = 4000;
  const device where = test::number(0);
  const stream on = pool_stream(where);
  const stream side = pool_stream(where);
  const device_memory result(side, size);
  for (unsigned char round = 1; round != 50; ++round) {
    {
      device_memory block(on, size);
      test::fill(on, block.data(), round, size);
      side.wait(on);
      test::copy(side, result.data(), where, block.data(), where, size);
      block.record_use(side);
      block.record_use(side);
      block.record_use(on);
    }
    device_memory next(on, size);
    test::fill(on, next.data(), 0, size);
    CHECK(test::download(side, result.data(), size) == byte_vector(size, round));
    on.synchronize();
  }
}

template <class Tag>
void check_devices_from_many_threads() {
  using traits = device_traits<Tag>;
  using test = device_under_test<Tag>;
  std::atomic<int> wrong = 0;
  const auto run = [&](int seed) {
    constexpr std::size_t size = 2000;
    const device where = test::number(seed % traits::count());
    for (int round = 0; round != 20; ++round) {
      const stream_guard current(pool_stream(where));
      const stream on = current_stream(where);
      const stream side = pool_stream(where);
      const byte_vector bytes = pattern(size, static_cast<std::size_t>(seed * 100 + round));
      device_memory a(on, size);
      test::upload(on, a.data(), bytes);
      side.wait(on);
      const device_memory b(side, size);
      test::copy(side, b.data(), where, a.data(), where, size);
      a.record_use(side);
      a = device_memory();
      if (test::download(side, b.data(), size) != bytes) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (int seed = 0; seed != 4; ++seed) threads.emplace_back(run, seed);
  for (std::thread& each : threads) each.join();
  CHECK(wrong == 0);
}

/// The whole suite. Call inside one TEST_CASE.
template <class Tag>
void device_conformance() {
  SUBCASE("devices have names and numbers") { check_device_identity<Tag>(); }
  SUBCASE("memory holds the data written to it") { check_device_memory<Tag>(); }
  SUBCASE("streams and events order the work") { check_stream_order<Tag>(); }
  SUBCASE("streams are values, and convert from and to handles") { check_streams_as_values<Tag>(); }
  SUBCASE("threads have current streams and devices of their own") { check_current<Tag>(); }
  SUBCASE("devices exchange memory") { check_two_devices<Tag>(); }
  SUBCASE("memory is reused in stream order") { check_memory_is_used_again_in_order<Tag>(); }
  SUBCASE("all of it works from many threads at once") { check_devices_from_many_threads<Tag>(); }
}

}  // namespace ferry::test_kit
