#include "transport/streams/frame_reader.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/base/error.hpp>
#include <ferry/device/cpu_pool.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/tensor/tensor.hpp>

#include "../../support/allocation_count.hpp"

namespace frame_reader_test {

namespace {

using namespace ferry;

struct collector final : detail::message_sink {
  std::vector<inbound_message> messages;
  void on_frame(inbound_message&& message) override { messages.push_back(std::move(message)); }
};

// Receives `bytes` as a connection does, at most `at_once` at a time; returns how often it had to receive.
std::size_t feed(detail::frame_reader& reader, detail::message_sink& sink, std::span<const std::byte> bytes,
                 std::size_t at_once = std::size_t{1} << 20) {
  std::size_t rounds = 0;
  while (!bytes.empty()) {
    std::array<iovec, detail::frame_reader::max_vectors> vectors;
    std::size_t total = 0;
    const std::size_t count = reader.prepare(vectors, total);
    REQUIRE(count != 0);
    const std::size_t part = std::min({total, bytes.size(), at_once});
    std::size_t done = 0;
    for (const iovec& vector : std::span(vectors).first(count)) {
      const std::size_t size = std::min(vector.iov_len, part - done);
      if (size != 0) std::memcpy(vector.iov_base, bytes.data() + done, size);
      done += size;
    }
    reader.commit(part, sink);
    bytes = bytes.subspan(part);
    ++rounds;
  }
  return rounds;
}

outgoing_message request_with(std::vector<tensor> tensors) {
  outgoing_message message;
  message.header.kind = frame_kind::request;
  message.header.flags = frame_no_deadline;
  message.tensors = std::move(tensors);
  message.finish();
  return message;
}

std::vector<std::byte> flat(const outgoing_message& message) {
  const auto body = message.bytes.bytes();
  std::vector<std::byte> all(body.begin(), body.end());
  for (const tensor& each : message.tensors) {
    const auto data = packed_bytes(each);
    all.insert(all.end(), data.begin(), data.end());
  }
  return all;
}

bool same_bytes(const tensor& a, const tensor& b) {
  return a.nbytes() == b.nbytes() && (a.nbytes() == 0 || std::memcmp(a.data(), b.data(), a.nbytes()) == 0);
}

// All but the tensor data of a message with `count` tensors of 1 MiB.
std::vector<std::byte> promise_of(std::uint16_t count) {
  outgoing_message one = request_with({zeros({2, 1, 1, 1 << 19}, dtype::u8)});
  const auto whole = one.bytes.bytes();
  const std::vector<std::byte> entry(whole.begin() + frame_header::encoded_size, whole.end());
  one.header.tensor_count = count;
  one.header.table_bytes = static_cast<std::uint32_t>(entry.size() * count);
  one.header.tensor_bytes = std::uint64_t{count} << 20;
  std::vector<std::byte> all(frame_header::encoded_size);
  one.header.encode(all.data());
  all.reserve(all.size() + entry.size() * count);
  for (std::uint16_t i = 0; i != count; ++i) all.insert(all.end(), entry.begin(), entry.end());
  return all;
}

std::uint64_t bytes_in_use() {
  const cpu_pool_stats pool = get_cpu_pool_stats();
  return pool.reserved_bytes - pool.cached_bytes;
}

TEST_CASE("a table that promises 64 GiB of tensors takes memory only for those whose bytes arrive") {
  constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  const std::vector<std::byte> promise = promise_of(65535);
  collector sink;
  detail::frame_reader reader{wire_limits{}};
  const std::uint64_t before = bytes_in_use();
  const std::size_t allocations = ferry_test::allocations_of_this_thread();
  feed(reader, sink, promise);
  std::array<iovec, detail::frame_reader::max_vectors> vectors;
  std::size_t total = 0;
  REQUIRE(reader.prepare(vectors, total) != 0);
  CHECK(reader.mid_message());
  CHECK(bytes_in_use() - before <= 4 * mib);
  CHECK(ferry_test::allocations_of_this_thread() - allocations <= 32);  // not a few for each of 65,535 tensors

  const std::vector<std::byte> megabyte(mib, std::byte{7});
  for (int i = 0; i != 20; ++i) feed(reader, sink, megabyte);
  const std::uint64_t after = bytes_in_use() - before;
  CHECK(after >= 20 * mib);
  CHECK(after <= 28 * mib);
  CHECK(sink.messages.empty());
  reader.abandon();
}

TEST_CASE("what a header promises beyond the byte budget is refused before anything is allocated for it") {
  wire_limits limits;
  limits.max_message_bytes = std::uint64_t{1} << 30;
  collector sink;
  detail::frame_reader reader{limits};
  const std::uint64_t before = bytes_in_use();
  try {
    const std::vector<std::byte> promise = promise_of(65535);
    feed(reader, sink, std::span(promise).first(frame_header::encoded_size));
    FAIL("accepted");
  } catch (const error& refused) {
    CHECK(refused.kind() == errc::limit_exceeded);
  }
  CHECK(bytes_in_use() == before);
}

TEST_CASE("messages with as many tensors as the limit allows arrive whole, in pieces of any size") {
  std::vector<tensor> tensors;
  std::mt19937 random(11);
  for (int i = 0; i != 65535; ++i) {
    if (i % 8192 == 5) {
      tensors.push_back(full({1 << 18}, i, dtype::i32));  // 1 MiB
    } else {
      tensors.push_back(full({static_cast<std::int64_t>(random() % 3)}, i, dtype::i32));  // some without elements
    }
  }
  const std::vector<std::byte> bytes = flat(request_with(tensors));
  for (const std::size_t at_once : {std::size_t{1} << 22, std::size_t{999}}) {
    collector sink;
    detail::frame_reader reader{wire_limits{}};
    feed(reader, sink, bytes, at_once);
    feed(reader, sink, bytes, at_once);
    CHECK_FALSE(reader.mid_message());
    REQUIRE(sink.messages.size() == 2);
    for (const inbound_message& message : sink.messages) {
      REQUIRE(message.tensors.size() == tensors.size());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i != tensors.size(); ++i) wrong += same_bytes(message.tensors[i], tensors[i]) ? 0 : 1;
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("tensors are received as many at once as before, and one with no allocation more") {
  collector sink;
  detail::frame_reader reader{wire_limits{}};
  std::vector<tensor> several;
  for (int i = 0; i != 9; ++i) several.push_back(full({6 * 1024}, i, dtype::i32));
  CHECK(feed(reader, sink, flat(request_with(several))) <= 3);
  const std::vector<std::byte> single = flat(request_with({full({64}, 1, dtype::f32)}));
  for (int i = 0; i != 4; ++i) feed(reader, sink, single);  // the pool and the block are warm
  sink.messages.clear();
  const std::size_t allocations = ferry_test::allocations_of_this_thread();
  feed(reader, sink, single);
  CHECK(ferry_test::allocations_of_this_thread() - allocations <= 2);  // the list of tensors, and that of messages
  REQUIRE(sink.messages.size() == 1);
}

}  // namespace

}  // namespace frame_reader_test
