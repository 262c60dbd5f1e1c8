// The header of a message. Input: its 64 bytes.

#include <array>

#include <ferry/wire/frame.hpp>

#include "targets.hpp"

namespace fuzz {
namespace frame_header_target {
namespace {

using header_bytes = std::array<std::byte, ferry::frame_header::encoded_size>;

void run(bytes input) {
  if (input.size() < ferry::frame_header::encoded_size) return;
  accepted([&] {
    const auto header = ferry::frame_header::decode(input.data(), limits);
    require(header.extension_bytes <= limits.max_extension_bytes && header.tensor_count <= limits.max_tensors,
            "counts are within their limits");
    require(header.payload_bytes <= limits.max_message_bytes &&
                header.tensor_bytes <= limits.max_message_bytes - header.payload_bytes,
            "payload and tensors are within their limit together");
    require(header.body_bytes() <= limits.max_message_bytes + limits.max_extension_bytes +
                                       std::uint64_t{limits.max_tensors} * (8 + 16 * limits.max_rank),
            "the body is bounded");
    header_bytes again;
    header.encode(again.data());
    require(same(again, input.first(again.size())), "a header encodes to what it was decoded from");
  });
}

void seeds(const seed_sink& sink) {
  const auto add = [&](std::string_view name, const ferry::frame_header& header) {
    header_bytes out;
    header.encode(out.data());
    sink(name, out);
  };
  ferry::frame_header header;
  header.method = 0x0102030405060708;
  header.signature = 0x1112131415161718;
  header.timeout_us = 60'000'000;
  header.payload_bytes = 100;
  add("request", header);
  header.flags = ferry::frame_one_way | ferry::frame_no_deadline;
  header.timeout_us = 0;
  add("one-way", header);
  ferry::frame_header reply;
  reply.kind = ferry::frame_kind::reply;
  reply.call_id = 7;
  reply.tensor_count = 2;
  reply.table_bytes = 2 * 40;
  reply.tensor_bytes = 4096;
  reply.extension_bytes = 16;
  add("reply", reply);
  ferry::frame_header failure;
  failure.kind = ferry::frame_kind::failure;
  failure.code = 404;
  add("failure", failure);
}

}  // namespace
}  // namespace frame_header_target

const target frame_header{"frame_header", &frame_header_target::run, &frame_header_target::seeds};

}  // namespace fuzz
