// A stream of messages that arrives in pieces of any size. Input: instructions, each an u8 and an u16 n:
//   0  the next n bytes of the input arrive at once          2  n bytes of zeroes arrive at once
//   1  the next n bytes of the input arrive one at a time    3  16 n bytes of zeroes arrive at once
// The zeroes make messages that are larger than any input.
//
// The reader must find the same messages, and the same error, as a decoder that has the whole stream before it.

#include <algorithm>
#include <array>

#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/pack.hpp>

#include "targets.hpp"
#include "transport/streams/frame_reader.hpp"

namespace fuzz {
namespace frame_reader_target {
namespace {

struct stream {
  std::vector<std::byte> content;
  std::vector<std::size_t> ends;  // of what arrives at once
};

constexpr std::size_t longest_stream = std::size_t{1} << 20;

stream make_stream(bytes input) {
  stream result;
  source from(input);
  while (!from.empty() && result.content.size() < longest_stream) {
    const auto what = from.number<std::uint8_t>() % 4;
    std::size_t count = from.number<std::uint16_t>();
    if (what >= 2) {
      if (what == 3) count *= 16;
      result.content.resize(result.content.size() + count);
    } else {
      for (const std::byte each : from.take(count)) {
        result.content.push_back(each);
        if (what == 1) result.ends.push_back(result.content.size());
      }
    }
    if (result.ends.empty() || result.ends.back() != result.content.size())
      result.ends.push_back(result.content.size());
  }
  return result;
}

struct outcome {
  std::vector<ferry::inbound_message> messages;
  std::optional<ferry::errc> refused;
  bool mid_message = false;
};

class collector final : public ferry::detail::message_sink {
 public:
  explicit collector(outcome& into) : into_(into) {}
  void on_frame(ferry::inbound_message&& message) override { into_.messages.push_back(std::move(message)); }

 private:
  outcome& into_;
};

outcome read_in_pieces(const stream& from) {
  outcome result;
  collector sink(result);
  ferry::detail::frame_reader reader(limits);
  try {
    std::size_t done = 0;
    for (const std::size_t end : from.ends) {
      while (done != end) {
        std::array<iovec, ferry::detail::frame_reader::max_vectors> vectors;
        std::size_t total = 0;
        const std::size_t count = reader.prepare(vectors, total);
        require(count != 0 && count <= vectors.size() && total != 0, "there is always room for the next bytes");
        std::size_t room = 0;
        std::size_t filled = 0;
        for (const iovec& vector : std::span(vectors).first(count)) {
          room += vector.iov_len;
          const std::size_t part = std::min(vector.iov_len, end - done - filled);
          if (part != 0) std::memcpy(vector.iov_base, from.content.data() + done + filled, part);
          filled += part;
        }
        require(room == total, "the total is the sum of the parts");
        done += filled;
        reader.commit(filled, sink);
      }
    }
    result.mid_message = reader.mid_message();
  } catch (const ferry::error& refused) {
    check_error(refused);
    result.refused = refused.kind();
  }
  return result;
}

// What the stream means, without buffers.
outcome read_at_once(bytes left) {
  outcome result;
  try {
    while (left.size() >= ferry::frame_header::encoded_size) {
      ferry::inbound_message message;
      message.header = ferry::frame_header::decode(left.data(), limits);
      bytes rest = left.subspan(ferry::frame_header::encoded_size);
      const auto body = static_cast<std::size_t>(message.header.body_bytes());
      if (rest.size() < body) break;
      message.payload = rest.first(static_cast<std::size_t>(message.header.payload_bytes));
      message.extensions = rest.subspan(message.payload.size(), message.header.extension_bytes);
      if (message.header.tensor_count != 0) {
        message.tensors =
            ferry::decode_tensor_table(message.header, rest.first(body).last(message.header.table_bytes), limits);
      }
      rest = rest.subspan(body);
      if (rest.size() < message.header.tensor_bytes) break;
      for (const auto& tensor : message.tensors) {
        const auto to = ferry::writable_packed_bytes(tensor);
        if (!to.empty()) std::memcpy(to.data(), rest.data(), to.size());
        rest = rest.subspan(to.size());
      }
      if ((message.header.flags & ferry::frame_outcome) != 0) {
        if (rest.size() < ferry::transfer_status::encoded_size) break;
        const auto how = ferry::transfer_status::decode(rest.data());
        if (how.code != ferry::errc{}) {
          message.failure = ferry::make_error(how.code, how.text);
          message.tensors.clear();
        }
        rest = rest.subspan(ferry::transfer_status::encoded_size);
      }
      ferry::check_received(message.tensors);
      left = rest;
      result.messages.push_back(std::move(message));
    }
    result.mid_message = !left.empty();
  } catch (const ferry::error& refused) {
    result.refused = refused.kind();
  }
  return result;
}

void check_elements(const ferry::tensor& tensor) {
  if (tensor.dtype() != ferry::dtype::bool_) return;
  for (const std::byte each : ferry::packed_bytes(tensor)) require(each <= std::byte{1}, "a bool is 0 or 1");
}

void check_same(const ferry::inbound_message& a, const ferry::inbound_message& b) {
  std::array<std::byte, ferry::frame_header::encoded_size> header_a;
  std::array<std::byte, ferry::frame_header::encoded_size> header_b;
  a.header.encode(header_a.data());
  b.header.encode(header_b.data());
  require(same(header_a, header_b), "headers arrive as they were sent");
  require(same(a.extensions, b.extensions) && same(a.payload, b.payload), "bodies arrive as they were sent");
  require((a.failure == nullptr) == (b.failure == nullptr), "failures arrive");
  require(a.tensors.size() == b.tensors.size(), "all tensors arrive");
  for (std::size_t i = 0; i != a.tensors.size(); ++i) {
    require(a.tensors[i].shape() == b.tensors[i].shape() && a.tensors[i].dtype() == b.tensors[i].dtype() &&
                same(ferry::packed_bytes(a.tensors[i]), ferry::packed_bytes(b.tensors[i])),
            "tensors arrive as they were sent");
  }
}

// The message written anew is what was read, but for the strides of axes that have none.
void check_encoding(const ferry::inbound_message& message) {
  ferry::outgoing_message again;
  again.header = message.header;
  bytes left = message.extensions;
  ferry::extension_record record;
  again.bytes.append(message.payload.data(), message.payload.size());
  if (!accepted([&] {
        ferry::check_extensions(left, limits);
        while (ferry::next_extension(left, record)) again.add_extension(record.type, record.critical, record.content);
      })) {
    return;  // found by the reader of the records
  }
  again.tensors = message.tensors;
  again.finish();
  std::array<std::byte, ferry::frame_header::encoded_size> header;
  message.header.encode(header.data());
  require(same(again.bytes.bytes().first(header.size()), header), "a header encodes to what it was decoded from");
  const bytes body = again.bytes.bytes().subspan(header.size());
  require(same(body.first(message.payload.size()), message.payload), "a payload encodes to what it was decoded from");
  require(same(body.subspan(message.payload.size(), message.extensions.size()), message.extensions),
          "extension records encode to what they were decoded from");
}

void run(bytes input) {
  const stream from = make_stream(input);
  const outcome pieces = read_in_pieces(from);
  const outcome whole = read_at_once(from.content);
  require(pieces.messages.size() == whole.messages.size(), "as many messages arrive as were sent");
  for (std::size_t i = 0; i != whole.messages.size(); ++i) {
    for (const auto& tensor : pieces.messages[i].tensors) check_elements(tensor);
    check_same(pieces.messages[i], whole.messages[i]);
    if (!pieces.messages[i].failure) check_encoding(pieces.messages[i]);
  }
  require(pieces.refused == whole.refused, "what is refused does not depend on how it arrives");
  if (!whole.refused) require(pieces.mid_message == whole.mid_message, "the end of a message is noticed");
}

void append(std::vector<std::byte>& to, ferry::outgoing_message& message, const ferry::transfer_status* how = nullptr) {
  message.finish();
  const bytes flat = message.bytes.bytes();
  to.insert(to.end(), flat.begin(), flat.end());
  for (const auto& tensor : message.tensors) {
    const auto data = ferry::packed_bytes(tensor);
    to.insert(to.end(), data.begin(), data.end());
  }
  if (how) {
    to.resize(to.size() + ferry::transfer_status::encoded_size);
    how->encode(to.data() + to.size() - ferry::transfer_status::encoded_size);
  }
}

// Instructions by which the stream arrives in pieces of that size.
void add_seed(const seed_sink& sink, std::string_view name, bytes stream, std::size_t piece, std::uint8_t what = 0) {
  seed out;
  while (!stream.empty()) {
    const bytes next = stream.first(std::min(piece, stream.size()));
    out.number(what).number(static_cast<std::uint16_t>(next.size())).add(next);
    stream = stream.subspan(next.size());
  }
  sink(name, out);
}

void seeds(const seed_sink& sink) {
  std::vector<std::byte> stream;
  for (int i = 0; i != 3; ++i) {
    ferry::outgoing_message message;
    message.header.call_id = static_cast<std::uint64_t>(i);
    message.bytes.append("payload", 7);
    if (i >= 1) message.add_extension(1, true, bytes_of("extension"));
    if (i == 2) message.tensors = {ferry::zeros({3, 5}), ferry::zeros({2}, ferry::dtype::u8), ferry::zeros({0})};
    append(stream, message);
  }
  add_seed(sink, "at-once", stream, 65535);
  add_seed(sink, "bytewise", stream, 65535, 1);
  add_seed(sink, "pieces", stream, 50);
  for (const char* text : {"", "the device has failed"}) {
    ferry::outgoing_message message;
    message.header.flags = ferry::frame_outcome;
    message.tensors = {ferry::zeros({3, 5}), ferry::zeros({70})};
    const ferry::transfer_status how{*text == 0 ? ferry::errc{} : ferry::errc::device_failure, text};
    stream.clear();
    append(stream, message, &how);
    append(stream, message, &how);
    add_seed(sink, *text == 0 ? "outcome" : "failed-outcome", stream, 100);
  }
  ferry::outgoing_message bools;
  bools.tensors = {ferry::zeros({1}), ferry::ones({3}, ferry::dtype::bool_)};
  stream.clear();
  append(stream, bools);
  add_seed(sink, "bools", stream, 65535);

  const auto large = [&](std::string_view name, std::size_t payload, std::vector<ferry::tensor> tensors,
                         std::size_t data) {
    ferry::outgoing_message message;
    message.header.kind = ferry::frame_kind::reply;
    std::memset(message.bytes.extend(payload), 0, payload);
    message.tensors = std::move(tensors);
    message.finish();
    const bytes flat = message.bytes.bytes();
    const std::size_t table = message.header.table_bytes;
    seed out;
    out.number(std::uint8_t{0}).number(std::uint16_t{64}).add(flat.first(64));
    out.number(std::uint8_t{3}).number(static_cast<std::uint16_t>(payload / 16));
    out.number(std::uint8_t{2}).number(static_cast<std::uint16_t>(payload % 16));
    out.number(std::uint8_t{0}).number(static_cast<std::uint16_t>(table)).add(flat.last(table));
    out.number(std::uint8_t{3}).number(static_cast<std::uint16_t>(data / 16));
    out.number(std::uint8_t{0}).number(std::uint16_t{64}).add(flat.first(64));
    sink(name, out);
  };
  large("large-payload", 200'000, {}, 0);
  large("block-payload", 65536 - 64, {}, 0);
  large("large-tensor", 100, {ferry::zeros({100, 160})}, 64'000);
  large("many-tensors", 10, std::vector<ferry::tensor>(12, ferry::zeros({16})), 12 * 64);
}

}  // namespace
}  // namespace frame_reader_target

const target frame_reader{"frame_reader", &frame_reader_target::run, &frame_reader_target::seeds};

}  // namespace fuzz
