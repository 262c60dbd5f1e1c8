#include <ferry/wire/frame.hpp>

#include <array>
#include <cstring>
#include <limits>

#include <doctest/doctest.h>

#include "errors.hpp"

namespace frame_test {

using ferry::errc;
using ferry::frame_header;
using ferry::frame_kind;

namespace {

using block = std::array<std::byte, frame_header::encoded_size>;

block encode(const frame_header& header) {
  block bytes;
  header.encode(bytes.data());
  return bytes;
}

frame_header request() {
  frame_header header;
  header.kind = frame_kind::request;
  header.tensor_count = 2;
  header.extension_bytes = 16;
  header.call_id = 0x0102030405060708;
  header.payload_bytes = 100;
  header.tensor_bytes = 4096;
  header.table_bytes = 48;
  header.code = 7;
  header.method = 0xa1a2a3a4a5a6a7a8;
  header.signature = 0xb1b2b3b4b5b6b7b8;
  header.timeout_us = 60'000'000;
  return header;
}

errc decode_error(const frame_header& header, const ferry::wire_limits& limits = {}) {
  const block bytes = encode(header);
  return kind_of([&] { (void)frame_header::decode(bytes.data(), limits); });
}

}  // namespace

TEST_CASE("a frame header is 64 bytes, little-endian, each field at its offset") {
  const frame_header header = request();
  const block bytes = encode(header);
  CHECK(bytes[0] == std::byte{1});
  CHECK(bytes[2] == std::byte{2});
  CHECK(bytes[4] == std::byte{16});
  CHECK(bytes[8] == std::byte{0x08});
  CHECK(bytes[15] == std::byte{0x01});
  CHECK(bytes[16] == std::byte{100});
  CHECK(bytes[25] == std::byte{0x10});
  CHECK(bytes[32] == std::byte{48});
  CHECK(bytes[36] == std::byte{7});
  CHECK(bytes[40] == std::byte{0xa8});
  CHECK(bytes[48] == std::byte{0xb8});
  const frame_header back = frame_header::decode(bytes.data(), {});
  CHECK(encode(back) == bytes);
  CHECK(back.body_bytes() == 100 + 16 + 48);
}

TEST_CASE("a frame header that no encoder writes is refused") {
  block bytes = encode(request());
  for (int kind : {0, 7, 255}) {
    bytes[0] = static_cast<std::byte>(kind);
    CHECK(kind_of([&] { (void)frame_header::decode(bytes.data(), {}); }) == errc::malformed);
  }
  auto header = request();
  header.flags = 8;
  CHECK(decode_error(header) == errc::malformed);
  header = request();
  header.kind = frame_kind::reply;
  header.flags = ferry::frame_one_way;
  CHECK(decode_error(header) == errc::malformed);
  header = request();
  header.flags = ferry::frame_no_deadline;
  CHECK(decode_error(header) == errc::malformed);
  header.timeout_us = 0;
  CHECK(decode_error(header) == errc{});
  header = request();
  header.extension_bytes = 12;
  CHECK(decode_error(header) == errc::malformed);
  header = request();
  header.table_bytes = 15;
  CHECK(decode_error(header) == errc::malformed);
  header.table_bytes = std::numeric_limits<std::uint32_t>::max();
  CHECK(decode_error(header) == errc::malformed);
  header = request();
  header.tensor_count = 0;
  CHECK(decode_error(header) == errc::malformed);
  header.table_bytes = 0;
  CHECK(decode_error(header) == errc::malformed);
  header.tensor_bytes = 0;
  CHECK(decode_error(header) == errc{});
}

TEST_CASE("a frame header above a limit is refused, also where sums would wrap") {
  auto header = request();
  header.payload_bytes = std::numeric_limits<std::uint64_t>::max();
  CHECK(decode_error(header) == errc::limit_exceeded);
  header = request();
  header.tensor_bytes = std::numeric_limits<std::uint64_t>::max() - 50;
  CHECK(decode_error(header) == errc::limit_exceeded);
  ferry::wire_limits limits;
  limits.max_message_bytes = 4196;
  CHECK(decode_error(request(), limits) == errc{});
  limits.max_message_bytes = 4195;
  CHECK(decode_error(request(), limits) == errc::limit_exceeded);
  limits = {};
  limits.max_tensors = 1;
  CHECK(decode_error(request(), limits) == errc::limit_exceeded);
  limits = {};
  limits.max_extension_bytes = 8;
  CHECK(decode_error(request(), limits) == errc::limit_exceeded);
}

}  // namespace frame_test
