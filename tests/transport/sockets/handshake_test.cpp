#include "transport/sockets/handshake.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "expect_error.hpp"

namespace d = ferry::detail;

namespace handshake_test {

namespace {

std::span<const std::byte> body_of(const std::vector<std::byte>& bytes) {
  return std::span(bytes).subspan(d::handshake_prefix::encoded_size);
}

ferry::hello some_hello() {
  ferry::hello result;
  result.group = std::string(512, 'g');
  result.name = std::string(127, 'n');
  result.id = ferry::worker_id{32767};
  result.incarnation = ferry::incarnation_id{0x0123456789abcdef};
  result.target = "t";
  result.features = 0xfedcba9876543210;
  result.joined = 0x1122334455667788;
  return result;
}

}  // namespace

TEST_CASE("hellos and answers survive the round trip") {
  const auto sent = some_hello();
  const auto bytes = d::encode_hello(sent);
  const auto prefix = d::handshake_prefix::decode(bytes.data(), d::hello_magic, "a:1");
  CHECK(prefix.version == d::protocol_version);
  CHECK(prefix.compatible());
  REQUIRE(prefix.body_bytes == body_of(bytes).size());
  const auto got = d::decode_hello(body_of(bytes));
  CHECK(got.group == sent.group);
  CHECK(got.joined == sent.joined);
  CHECK(got.name == sent.name);
  CHECK((got.id == sent.id));
  CHECK((got.incarnation == sent.incarnation));
  CHECK(got.target == sent.target);
  CHECK(got.features == sent.features);

  const auto accepted =
      d::decode_answer(body_of(d::encode_answer(ferry::hello_reply{"w", ferry::worker_id{-1}, {5}, 6})));
  const auto& reply = std::get<ferry::hello_reply>(accepted);
  CHECK(reply.name == "w");
  CHECK((reply.id == ferry::worker_id{-1}));
  CHECK(reply.incarnation.value == 5);
  CHECK(reply.features == 6);
  const auto refused =
      d::decode_answer(body_of(d::encode_answer(d::refusal{ferry::errc::fenced, std::string(5000, 'x')})));
  CHECK(std::get<d::refusal>(refused).code == ferry::errc::fenced);
  CHECK(std::get<d::refusal>(refused).text == std::string(d::longest_refusal, 'x'));
}

TEST_CASE("the first bytes of a hello are fixed") {
  ferry::hello hello;
  hello.group = "g";
  hello.name = "a";
  hello.target = "b";
  hello.id = ferry::worker_id{2};
  hello.incarnation = ferry::incarnation_id{3};
  hello.features = 4;
  hello.joined = 5;
  const std::vector<unsigned char> expected{
      0x89, 'F', 'E', 'R', 'R', 'Y', '>', '\n', 1, 0, 0,   0, 1, 0,   0, 0, 37, 0, 0, 0,  // prefix
      4,    0,   0,   0,   0,   0,   0,   0,    3, 0, 0,   0, 0, 0,   0, 0, 2,  0, 0, 0,
      5,    0,   0,   0,   0,   0,   0,   0,    1, 0, 'g', 1, 0, 'a', 1, 0, 'b'};
  const auto bytes = d::encode_hello(hello);
  REQUIRE(bytes.size() == expected.size());
  CHECK(std::equal(bytes.begin(), bytes.end(), expected.begin(),
                   [](std::byte a, unsigned char b) { return std::to_integer<unsigned char>(a) == b; }));
}

TEST_CASE("names that are too long are not sent") {
  auto hello = some_hello();
  hello.name += 'n';
  expect_error(ferry::errc::invalid_argument, "127", [&] { (void)d::encode_hello(hello); });
  hello = some_hello();
  hello.group += 'g';
  expect_error(ferry::errc::invalid_argument, "512", [&] { (void)d::encode_hello(hello); });
}

TEST_CASE("versions must overlap") {
  const auto prefix = [](std::uint32_t newest, std::uint32_t oldest) { return d::handshake_prefix{newest, oldest, 0}; };
  CHECK(prefix(d::protocol_version, d::protocol_version).compatible());
  CHECK(prefix(d::protocol_version + 5, d::protocol_version).compatible());
  CHECK_FALSE(prefix(d::protocol_version + 5, d::protocol_version + 1).compatible());
  CHECK_FALSE(prefix(d::oldest_protocol_version - 1, 0).compatible());
  const auto text = prefix(99, 98).version_text("a:1");
  CHECK(text.find("versions 98 to 99") != text.npos);
  CHECK(text.find("version 1") != text.npos);
}

TEST_CASE("damaged handshakes cause errors and nothing else") {
  const auto hello = d::encode_hello(some_hello());
  const auto answer = d::encode_answer(ferry::hello_reply{"worker", ferry::worker_id{1}, {5}, 6});
  const auto refusal = d::encode_answer(d::refusal{ferry::errc::fenced, "text"});
  const auto survives = [](auto&& decode) {
    try {
      decode();
    } catch (const ferry::error& error) {
      CHECK(error.kind() == ferry::errc::handshake_failed);
    }
  };
  for (const auto* whole : {&hello, &answer, &refusal}) {
    const auto body = body_of(*whole);
    for (std::size_t size = 0; size < body.size(); ++size) {  // every truncation is detected
      expect_error(ferry::errc::handshake_failed, "ends before", [&] {
        if (whole == &hello) {
          (void)d::decode_hello(body.first(size));
        } else {
          (void)d::decode_answer(body.first(size));
        }
      });
    }
    std::mt19937 random(7);
    for (int round = 0; round < 4'000; ++round) {
      std::vector<std::byte> damaged(body.begin(), body.end());
      for (unsigned flips = 1 + random() % 4; flips != 0; --flips) {
        damaged[random() % std::min<std::size_t>(damaged.size(), 40)] ^= static_cast<std::byte>(1U << (random() % 8));
      }
      survives([&] { (void)d::decode_hello(damaged); });
      survives([&] { (void)d::decode_answer(damaged); });
    }
  }
  expect_error(ferry::errc::handshake_failed, "the peer at a:1 does not speak ferry",
               [&] { (void)d::handshake_prefix::decode(answer.data(), d::hello_magic, "a:1"); });
  expect_error(ferry::errc::handshake_failed, "more than 4096", [] {
    d::handshake_prefix{1, 1, 4097}.check_size("a:1");
  });
}

}  // namespace handshake_test
