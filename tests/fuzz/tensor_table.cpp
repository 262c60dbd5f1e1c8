// The tensor table of a message. Input: u8 number of tensors, u32 bytes of their data, then the table.

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/wire/message.hpp>

#include "targets.hpp"

namespace fuzz {
namespace tensor_table_target {
namespace {

std::vector<ferry::tensor> decode(std::size_t count, std::uint64_t data, bytes table) {
  ferry::frame_header header;
  header.tensor_count = static_cast<std::uint16_t>(count);
  header.tensor_bytes = data;
  header.table_bytes = static_cast<std::uint32_t>(table.size());
  return ferry::decode_tensor_table(header, table, limits);
}

struct encoded {
  ferry::outgoing_message message;
  bytes table;
};
encoded encode(const std::vector<ferry::tensor>& tensors) {
  encoded result;
  result.message.tensors = tensors;
  result.message.finish();
  result.table = result.message.bytes.bytes().subspan(ferry::frame_header::encoded_size);
  return result;
}

void run(bytes input) {
  source from(input);
  const auto count = from.number<std::uint8_t>() % (limits.max_tensors + 1);
  const auto data = from.number<std::uint32_t>();
  accepted([&] {
    const auto tensors = decode(count, data, from.rest());
    require(tensors.size() == count, "every entry is a tensor");
    std::uint64_t total = 0;
    for (const auto& each : tensors) {
      require(ferry::is_packed(each), "tensors travel packed");
      const auto memory = ferry::writable_packed_bytes(each);
      if (!memory.empty()) std::memset(memory.data(), 0xa5, memory.size());
      total += memory.size();
      require(each.rank() <= limits.max_rank, "the rank is bounded");
      require(each.numel() >= 0, "the number of elements fits");
    }
    require(total == data && total <= limits.max_message_bytes, "the tensors have the bytes that the header says");
    const encoded again = encode(tensors);
    require(again.message.header.tensor_bytes == data && again.table.size() == from.rest().size(),
            "sizes survive the encoding");
    // Strides of axes of size 0 and 1 are replaced once, and stay.
    const auto twice = decode(count, data, again.table);
    for (std::size_t i = 0; i != tensors.size(); ++i) {
      require(twice[i].shape() == tensors[i].shape() && twice[i].strides() == tensors[i].strides() &&
                  twice[i].dtype() == tensors[i].dtype(),
              "tensors survive the encoding");
    }
    require(same(encode(twice).table, again.table), "a table encodes to what it was decoded from");
  });
}

void seeds(const seed_sink& sink) {
  const auto add = [&](std::string_view name, const std::vector<ferry::tensor>& tensors) {
    const encoded out = encode(tensors);
    sink(name, seed()
                   .number(static_cast<std::uint8_t>(tensors.size()))
                   .number(static_cast<std::uint32_t>(out.message.header.tensor_bytes))
                   .add(out.table));
  };
  const auto matrix = ferry::zeros({3, 4});
  add("matrix", {matrix});
  add("transposed", {matrix.transpose(0, 1)});
  add("several", {matrix, ferry::zeros({2, 1, 5}, ferry::dtype::u8), ferry::zeros({0, 7}), ferry::zeros({})});
  add("expanded", {ferry::zeros({1, 4}).expand({6, 4})});
  add("none", {});
}

}  // namespace
}  // namespace tensor_table_target

const target tensor_table{"tensor_table", &tensor_table_target::run, &tensor_table_target::seeds};

}  // namespace fuzz
