#include <ferry/wire/message.hpp>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/detail/little_endian.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/wire/serialize.hpp>

#include "errors.hpp"
#include "flat_message.hpp"

namespace message_test {

using ferry::errc;
using ferry::tensor;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("[row 90] the flat wire format round-trips with and without payload and tensors") {
  for (const std::string& text : {std::string(), std::string("payload")}) {
    for (const bool with_tensors : {false, true}) {
      ferry::outgoing_message message;
      message.header.kind = ferry::frame_kind::reply;
      message.bytes.append(text.data(), text.size());
      if (with_tensors) message.tensors = {ferry::arange(6).view({2, 3}), ferry::zeros({0, 4}), ferry::full({}, 2.5)};
      const auto flat = flatten(message);
      const auto back = unflatten(flat);
      CHECK(back.header.kind == ferry::frame_kind::reply);
      CHECK(text_of(back.payload) == text);
      REQUIRE(back.tensors.size() == (with_tensors ? 3 : 0));
      for (std::size_t i = 0; i < back.tensors.size(); ++i) {
        CHECK(back.tensors[i].dtype() == message.tensors[i].dtype());
        CHECK(ferry::equal(back.tensors[i], message.tensors[i]));
      }
    }
  }
}

TEST_CASE("[row 90] a small view shrinks to what is visible, a full tensor is not cloned") {
  const tensor large = ferry::arange(1024 * 1024).view({1024, 1024});
  ferry::outgoing_message message;
  message.tensors = {large, large.narrow(1, 3, 2), large.transpose(0, 1)};
  message.finish();
  CHECK(message.tensors[0].same_as(large));
  CHECK(ferry::packed_bytes(message.tensors[1]).size() == 1024 * 2 * sizeof(std::int64_t));
  CHECK_FALSE(message.tensors[1].storage().same_as(large.storage()));
  CHECK(message.tensors[2].storage().same_as(large.storage()));
  const auto back = unflatten(flatten(message));
  CHECK(ferry::equal(back.tensors[1], large.narrow(1, 3, 2)));
  CHECK(ferry::equal(back.tensors[2], large.transpose(0, 1)));
  CHECK(back.tensors[2].stride(0) == 1);
}

TEST_CASE("[row 88] one row of a large tensor: only the row is sent, and nothing is copied") {
  const tensor large = ferry::arange(1024 * 1024).view({1024, 1024});
  const tensor row = large.select(0, 7);
  ferry::outgoing_message message;
  message.tensors = {row};
  message.finish();
  CHECK(message.header.tensor_bytes == 1024 * sizeof(std::int64_t));
  CHECK(message.tensors[0].storage().same_as(large.storage()));
  CHECK(ferry::equal(unflatten(flatten(message)).tensors[0], row));
}

TEST_CASE("[row 89] a tensor over borrowed memory is copied before it is sent") {
  std::vector<float> memory{1, 2, 3, 4};
  const tensor borrowed = ferry::from_blob(memory.data(), {4}, ferry::dtype::f32);
  auto owner = std::make_shared<std::vector<float>>(memory);
  const tensor owned = ferry::from_blob(owner->data(), {4}, ferry::dtype::f32, owner);
  ferry::outgoing_message message;
  message.tensors = {borrowed, owned};
  message.finish();
  memory.assign(4, 0.0F);
  CHECK(message.tensors[0].data() != memory.data());
  CHECK(message.tensors[0].at<float>(2) == 3);
  CHECK(message.tensors[1].data() == owner->data());
}

TEST_CASE("[row 90] a message cut short anywhere gives an error of truncation or of bounds") {
  ferry::outgoing_message message;
  message.header.kind = ferry::frame_kind::request;
  ferry::encode_values<std::string, tensor>(message.bytes, message.tensors, "text", ferry::arange(5));
  message.add_extension(9, false, bytes_of("x"));
  const auto flat = flatten(message);
  for (std::size_t size = 0; size < flat.size(); ++size) {
    CAPTURE(size);
    CHECK_THROWS_AS((void)unflatten(std::span(flat).first(size)), ferry::error);
  }
}

TEST_CASE("a tensor table is checked before anything is allocated") {
  ferry::outgoing_message message;
  message.tensors = {ferry::zeros({2, 3})};
  message.finish();
  const std::size_t entry = 8 + 2 * 16;
  const auto table = message.bytes.bytes().last(entry);
  const auto decode = [&](auto change, std::uint64_t tensor_bytes = 24, std::uint16_t count = 1) {
    std::vector<std::byte> bytes(table.begin(), table.end());
    change(bytes);
    ferry::frame_header header = message.header;
    header.tensor_bytes = tensor_bytes;
    header.tensor_count = count;
    header.table_bytes = static_cast<std::uint32_t>(bytes.size());
    return kind_of([&] { (void)ferry::decode_tensor_table(header, bytes, {}); });
  };
  using table_bytes = std::vector<std::byte>;
  const auto set_u64 = [](std::size_t at, std::uint64_t value) {
    return [=](table_bytes& bytes) { ferry::detail::store_le(bytes.data() + at, value); };
  };
  const auto set_u8 = [](std::size_t at, int value) {
    return [=](table_bytes& bytes) { bytes[at] = static_cast<std::byte>(value); };
  };
  CHECK(decode([](table_bytes&) {}) == errc{});
  CHECK(decode(set_u8(0, 0)) == errc::malformed);  // dtype
  CHECK(decode(set_u8(0, 99)) == errc::malformed);
  CHECK(decode(set_u8(1, 1)) == errc::bad_device);       // device kind
  CHECK(decode(set_u8(2, 1)) == errc::bad_device);       // device index
  CHECK(decode(set_u8(4, 33)) == errc::limit_exceeded);  // rank
  CHECK(decode(set_u8(4, 3)) == errc::truncated);
  CHECK(decode(set_u8(4, 1)) != errc{});
  CHECK(decode(set_u8(5, 1)) == errc::malformed);                        // reserved
  CHECK(decode(set_u64(8, std::uint64_t{1} << 40)) == errc::malformed);  // sizes
  CHECK(decode(set_u64(8, std::uint64_t{1} << 63)) == errc::malformed);
  CHECK(decode(set_u64(8, ~std::uint64_t{0} >> 1)) == errc::malformed);
  CHECK(decode(set_u64(24, ~std::uint64_t{0})) == errc::malformed);  // strides
  CHECK(decode(set_u64(24, 1'000'000)) == errc::malformed);
  CHECK(decode([](table_bytes&) {}, 23) == errc::malformed);
  CHECK(decode([](table_bytes&) {}, 25) == errc::malformed);
  CHECK(decode([](table_bytes&) {}, 24, 2) == errc::truncated);
  CHECK(decode([](table_bytes& bytes) { bytes.emplace_back(); }) == errc::malformed);
}

}  // namespace message_test
