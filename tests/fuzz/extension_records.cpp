// The extension records of a message. Input: the records.

#include <ferry/wire/message.hpp>

#include "targets.hpp"

namespace fuzz {
namespace extension_records_target {
namespace {

void run(bytes input) {
  ferry::outgoing_message again;
  bytes left = input;
  std::uint32_t count = 0;
  const bool checked = accepted([&] { ferry::check_extensions(input, limits); });
  const bool read = accepted([&] {
    ferry::extension_record record;
    while (ferry::next_extension(left, record)) {
      require(record.content.empty() || (record.content.data() >= input.data() &&
                                         record.content.data() + record.content.size() <= input.data() + input.size()),
              "a record lies within the message");
      again.add_extension(record.type, record.critical, record.content);
      ++count;
    }
    require(left.empty(), "all records are read");
  });
  require(checked == (read && count <= limits.max_extensions), "records are well-formed and not too many, or refused");
  const bytes written = again.bytes.bytes().subspan(ferry::frame_header::encoded_size);
  require(same(written, input.first(input.size() - left.size())), "records encode to what they were decoded from");
}

void seeds(const seed_sink& sink) {
  ferry::outgoing_message message;
  message.add_extension(1, true, bytes_of("0123456789"));
  message.add_extension(2, false, {});
  message.add_extension(0xffff, false, bytes_of("12345678"));
  sink("three", message.bytes.bytes().subspan(ferry::frame_header::encoded_size));
  for (std::uint32_t i = 3; i <= limits.max_extensions; ++i) message.add_extension(1024, false, {});
  sink("one-too-many", message.bytes.bytes().subspan(ferry::frame_header::encoded_size));
}

}  // namespace
}  // namespace extension_records_target

const target extension_records{"extension_records", &extension_records_target::run, &extension_records_target::seeds};

}  // namespace fuzz
