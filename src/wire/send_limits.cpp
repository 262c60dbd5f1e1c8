#include "send_limits.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

#include <ferry/base/error.hpp>
#include <ferry/tensor/dims.hpp>

#include "extension_format.hpp"

namespace ferry::inline v0::detail {

void check_to_send(std::string_view what, const outgoing_message& message, const wire_limits& limits,
                   std::string_view receiver) {
  const auto refuse = [&](const std::string& has, std::uint64_t limit, std::string_view option,
                          std::string_view advice = {}) {
    throw_error(errc::limit_exceeded, std::string(what) + " has " + has + ", the limit " +
                                          (receiver.empty() ? std::string() : "of '" + std::string(receiver) + "' ") +
                                          "is " + std::to_string(limit) + " (wire_limits::" + std::string(option) +
                                          ")" + std::string(advice));
  };
  const std::uint64_t record_bytes = message.extension_bytes();
  if (record_bytes > limits.max_extension_bytes) {
    refuse(std::to_string(record_bytes) + " bytes of extension records", limits.max_extension_bytes,
           "max_extension_bytes");
  }
  const std::uint64_t payload_bytes = message.payload_bytes();
  if (record_bytes / record_header > limits.max_extensions) {
    const auto records = message.bytes.bytes().subspan(frame_header::encoded_size + payload_bytes, record_bytes);
    check_extensions(records, limits);
  }
  const std::uint64_t tensor_bytes = message.tensors.empty() ? 0 : message.size() - message.bytes.size();
  if (payload_bytes > limits.max_message_bytes || tensor_bytes > limits.max_message_bytes - payload_bytes) {
    refuse(tensor_bytes == 0 ? std::to_string(payload_bytes) + " bytes"
                             : std::to_string(tensor_bytes) + " bytes of tensors and " + std::to_string(payload_bytes) +
                                   " of other values",
           limits.max_message_bytes, "max_message_bytes");
  }
  if (message.tensors.size() > limits.max_tensors) {
    refuse(std::to_string(message.tensors.size()) + " tensors", limits.max_tensors, "max_tensors",
           "; stack them into fewer");
  }
  if (limits.max_rank >= max_rank) return;
  for (const tensor& each : message.tensors) {
    if (each.rank() > limits.max_rank)
      refuse("a tensor of " + std::to_string(each.rank()) + " dimensions", limits.max_rank, "max_rank");
  }
}

}  // namespace ferry::inline v0::detail
