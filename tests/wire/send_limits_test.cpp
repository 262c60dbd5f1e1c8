#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>
#include <ferry/wire/message.hpp>
#include <ferry/wire/serialize.hpp>
#include <ferry/wire/tensor_archive.hpp>

#include "errors.hpp"
#include "flat_message.hpp"
#include "wire/send_limits.hpp"

namespace send_limits_test {

using ferry::errc;
using ferry::tensor;
using ferry::wire_limits;

namespace {

// 24 bytes of payload or a few more, tensors of 3 to 5 dimensions, and records.
ferry::outgoing_message message_of(const std::vector<tensor>& tensors, int records) {
  ferry::outgoing_message message;
  ferry::encode_values<std::string>(message.bytes, message.tensors, std::string(16, 'p'));
  message.tensors = tensors;
  const std::byte content[5]{};
  for (int i = 0; i != records; ++i) message.add_extension(4711, false, content);
  return message;
}

bool sends(const ferry::outgoing_message& message, const wire_limits& limits) {
  const errc found = kind_of([&] { ferry::detail::check_to_send("it", message, limits); });
  REQUIRE((found == errc{} || found == errc::limit_exceeded));
  return found == errc{};
}

bool receives(ferry::outgoing_message message, const wire_limits& limits) {
  const auto flat = flatten(message);
  const errc found = kind_of([&] { ferry::check_extensions(unflatten(flat, limits).extensions, limits); });
  REQUIRE((found == errc{} || found == errc::limit_exceeded ||
           found == errc::malformed));  // a table too long for its ranks
  return found == errc{};
}

}  // namespace

TEST_CASE("a message is sent if and only if a receiver with the same limits takes it") {
  const tensor cube = ferry::zeros({2, 3, 4});
  const std::vector<std::vector<tensor>> all{
      {},
      {cube},
      {cube.transpose(0, 2)},
      {cube, ferry::zeros({1, 1, 1, 1, 1})},
      {ferry::zeros({1, 8}).expand({100, 8})},
      {ferry::zeros({0, 3})},
      {ferry::zeros({})},
  };
  int refused = 0;
  for (const auto& tensors : all) {
    for (const int records : {0, 1, 3}) {
      ferry::outgoing_message whole = message_of(tensors, records);
      whole.finish();
      const ferry::frame_header& header = whole.header;
      std::vector<wire_limits> tried;
      for (const int less : {0, 1}) {
        const auto lower = [less](auto value) {
          return value == 0 ? value : static_cast<decltype(value)>(value - less);
        };
        tried.push_back({.max_message_bytes = lower(header.payload_bytes + header.tensor_bytes)});
        tried.push_back({.max_message_bytes = lower(header.payload_bytes)});
        tried.push_back({.max_tensors = lower(static_cast<std::uint32_t>(tensors.size()))});
        tried.push_back({.max_extension_bytes = lower(header.extension_bytes)});
        tried.push_back({.max_extensions = lower(static_cast<std::uint32_t>(records))});
      }
      for (const std::uint32_t rank : {0, 2, 3, 4, 5, 31, 32}) tried.push_back({.max_rank = rank});
      for (const wire_limits& limits : tried) {
        CAPTURE(tensors.size());
        CAPTURE(records);
        CAPTURE(limits.max_message_bytes);
        CAPTURE(limits.max_rank);
        const bool sent = sends(message_of(tensors, records), limits);
        CHECK(sent == receives(message_of(tensors, records), limits));
        refused += sent ? 0 : 1;
      }
    }
  }
  CHECK(refused > 50);
}

}  // namespace send_limits_test
