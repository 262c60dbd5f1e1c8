#include <ferry/wire/extension.hpp>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/detail/little_endian.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/wire/message.hpp>
#include <ferry/wire/serialize.hpp>

#include "errors.hpp"
#include "flat_message.hpp"

namespace extension_test {

using ferry::errc;
using ferry::extension_range;
using ferry::range_of_extension;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

using record_list = std::vector<std::pair<int, std::string>>;

record_list all_records(std::span<const std::byte> records) {
  record_list all;
  ferry::extension_record record;
  while (ferry::next_extension(records, record)) all.emplace_back(record.type, text_of(record.content));
  return all;
}

// The records of a message that has nothing else.
std::vector<std::byte> records_of(ferry::outgoing_message& message) {
  message.finish();
  const auto bytes = message.bytes.bytes().subspan(ferry::frame_header::encoded_size);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("each type of extension record belongs to one range") {
  static_assert(range_of_extension(0) == extension_range::reserved);
  static_assert(range_of_extension(1) == extension_range::ferry);
  static_assert(range_of_extension(1023) == extension_range::ferry);
  static_assert(range_of_extension(1024) == extension_range::registered);
  static_assert(range_of_extension(32767) == extension_range::registered);
  static_assert(range_of_extension(32768) == extension_range::private_use);
  static_assert(range_of_extension(65535) == extension_range::private_use);
  ferry::outgoing_message message;
  for (const std::uint16_t type : {1, 1023, 1024, 32767, 32768, 65535}) message.add_extension(type, false, {});
  CHECK(kind_of([&] { message.add_extension(0, false, {}); }) == errc::invalid_argument);
  CHECK(all_records(records_of(message)) ==
        record_list{{1, ""}, {1023, ""}, {1024, ""}, {32767, ""}, {32768, ""}, {65535, ""}});
}

TEST_CASE("extension records are padded to eight bytes and read back in order, several of one type too") {
  ferry::outgoing_message message;
  message.add_extension(1, true, bytes_of("abc"));
  message.add_extension(500, false, {});
  message.add_extension(1, false, bytes_of("12345678"));
  message.add_extension(500, true, bytes_of("last"));
  const auto bytes = records_of(message);
  CHECK(message.header.extension_bytes == 16 + 8 + 16 + 16);
  CHECK(message.header.payload_bytes == 0);
  std::span<const std::byte> records = bytes;
  ferry::extension_record record;
  REQUIRE(ferry::next_extension(records, record));
  CHECK(record.type == 1);
  CHECK(record.critical);
  CHECK(text_of(record.content) == "abc");
  CHECK(all_records(records) == record_list{{500, ""}, {1, "12345678"}, {500, "last"}});
}

TEST_CASE("extension records follow a payload of any size, at once") {
  for (std::size_t size = 0; size != 10; ++size) {
    CAPTURE(size);
    const std::string payload(size, 'p');
    ferry::outgoing_message message;
    message.bytes.append(payload.data(), payload.size());
    message.add_extension(7, false, bytes_of("first"));
    message.add_extension(8, true, bytes_of("a second record"));
    CHECK(text_of(message.payload()) == payload);
    message.finish();
    CHECK(text_of(message.payload()) == payload);
    CHECK(message.header.payload_bytes == size);
    CHECK(message.header.extension_bytes == 16 + 24);
    CHECK(message.size() == 64 + size + 40);
    CHECK(text_of(message.bytes.bytes().subspan(64, size)) == payload);
    CHECK(ferry::detail::load_le<std::uint16_t>(message.bytes.data() + 64 + size) == 7);
    const auto back = unflatten(flatten(message));
    CHECK(text_of(back.payload) == payload);
    CHECK(all_records(back.extensions) == record_list{{7, "first"}, {8, "a second record"}});
  }
}

TEST_CASE("a message carries payload, extension records and tensors together, also once copied or made void") {
  ferry::outgoing_message message;
  ferry::encode_values<std::string, ferry::tensor>(message.bytes, message.tensors, "odd", ferry::arange(5));
  message.add_extension(40000, false, bytes_of("known once the tensors are"));
  message.finish();
  ferry::outgoing_message other = message.copy();
  message.finish();  // again: nothing changes
  CHECK(flatten(other) == flatten(message));
  const auto back = unflatten(flatten(other));
  std::string text;
  ferry::tensor tensor;
  ferry::decode_values(back.payload, back.tensors, {}, text, tensor);
  CHECK(text == "odd");
  CHECK(ferry::equal(tensor, ferry::arange(5)));
  CHECK(all_records(back.extensions) == record_list{{40000, "known once the tensors are"}});

  message.become_void();
  CHECK((message.header.flags & ferry::frame_outcome) != 0);
  CHECK(message.bytes.size() == message.header.message_bytes());
  const auto left = message.bytes.bytes().subspan(64 + message.payload().size(), message.header.extension_bytes);
  CHECK(all_records(left) == record_list{{40000, "known once the tensors are"}});
}

TEST_CASE("an extension record is written into the message, without a buffer beside it") {
  ferry::outgoing_message message;
  message.bytes.append("payload", 7);
  ferry::byte_buffer& content = message.begin_extension(1024, true);
  content.append("ab", 2);
  content.append("cde", 3);
  message.end_extension();
  message.begin_extension(1025, false);
  message.end_extension();
  message.finish();
  const auto back = unflatten(flatten(message));
  CHECK(text_of(back.payload) == "payload");
  CHECK(all_records(back.extensions) == record_list{{1024, "abcde"}, {1025, ""}});
}

TEST_CASE("an extension record at a wrong time is an error") {
  const auto refused = [](auto use) {
    ferry::outgoing_message message;
    message.bytes.append("payload", 7);
    return kind_of([&] { use(message); }) == errc::invalid_argument;
  };
  // Bytes of the payload behind a record.
  CHECK(refused([](auto& message) {
    message.add_extension(1, false, {});
    message.bytes.extend(8);
    message.add_extension(1, false, {});
  }));
  CHECK(refused([](auto& message) {
    message.add_extension(1, false, {});
    message.bytes.extend(8);
    message.finish();
  }));
  CHECK(refused([](auto& message) {
    message.finish();
    message.add_extension(1, false, {});
  }));
  CHECK(refused([](auto& message) {
    message.begin_extension(1, false);
    message.begin_extension(2, false);
  }));
  CHECK(refused([](auto& message) {
    message.begin_extension(1, false);
    message.finish();
  }));
  CHECK(refused([](auto& message) { message.end_extension(); }));
  CHECK(refused([](auto& message) { message.begin_extension(0, false); }));
}

TEST_CASE("a discarded payload takes its extension records along") {
  ferry::outgoing_message message;
  message.bytes.append("payload", 7);
  message.tensors = {ferry::arange(3)};
  message.add_extension(5, true, bytes_of("record"));
  message.begin_extension(6, true);
  message.discard_payload();
  message.bytes.append("other", 5);
  message.add_extension(7, false, {});
  message.finish();
  const auto back = unflatten(flatten(message));
  CHECK(text_of(back.payload) == "other");
  CHECK(all_records(back.extensions) == record_list{{7, ""}});
  CHECK(back.tensors.empty());
}

TEST_CASE("extension records that no encoder writes are refused") {
  ferry::outgoing_message message;
  message.add_extension(1, true, bytes_of("abc"));
  const auto whole = records_of(message);
  const auto with = [&](std::size_t at, int value) {
    std::vector<std::byte> changed = whole;
    changed[at] = static_cast<std::byte>(value);
    const errc found = kind_of([&] { ferry::check_extensions(changed, {}); });
    CHECK(kind_of([&] { (void)all_records(changed); }) == found);
    return found;
  };
  CHECK(with(0, 0) == errc::malformed);  // the reserved type
  CHECK(with(2, 2) == errc::malformed);  // an unknown flag
  CHECK(with(4, 9) == errc::truncated);  // longer than the remaining bytes
  CHECK(with(7, 255) == errc::truncated);
  CHECK(with(15, 1) == errc::malformed);  // padding
  for (std::size_t size = 1; size < whole.size(); ++size) {
    CHECK(kind_of([&] { ferry::check_extensions(std::span(whole).first(size), {}); }) == errc::truncated);
  }
}

TEST_CASE("the number of extension records is bounded, at the sender and at the receiver") {
  const ferry::wire_limits limits;
  ferry::outgoing_message message;
  for (std::uint32_t i = 0; i != limits.max_extensions; ++i) message.add_extension(32768, false, {});
  const auto most = records_of(message);
  CHECK(kind_of([&] { ferry::check_extensions(most, limits); }) == errc{});
  CHECK(kind_of([&] { ferry::check_extensions(most, {.max_extensions = limits.max_extensions - 1}); }) ==
        errc::limit_exceeded);
  CHECK(kind_of([&] { ferry::check_extensions(most, {.max_extensions = 0}); }) == errc::limit_exceeded);
  CHECK(kind_of([&] { ferry::check_extensions({}, {.max_extensions = 0}); }) == errc{});

  ferry::outgoing_message crowded;
  for (std::uint32_t i = 0; i <= limits.max_extensions; ++i) crowded.add_extension(32768, false, {});
  CHECK(kind_of([&] { crowded.finish(); }) == errc::limit_exceeded);
}

TEST_CASE("an unknown extension record is skipped, unless it is critical") {
  for (const std::uint16_t type : {1023, 1024, 40000}) {
    CHECK(kind_of([&] { ferry::skip_extension({type, false, {}}); }) == errc{});
    CHECK(kind_of([&] { ferry::skip_extension({type, true, {}}); }) == errc::unknown_extension);
  }
}

}  // namespace extension_test
