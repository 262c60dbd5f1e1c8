#pragma once

// A whole message as one block of bytes, as a stream carries it, and back.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/tensor/pack.hpp>
#include <ferry/wire/message.hpp>

inline std::vector<std::byte> flatten(ferry::outgoing_message& message) {
  if (message.header.body_bytes() == 0 && message.header.tensor_count == 0) message.finish();
  const auto bytes = message.bytes.bytes();
  std::vector<std::byte> flat(bytes.begin(), bytes.end());
  for (const auto& tensor : message.tensors) {
    const auto data = ferry::packed_bytes(tensor);
    flat.insert(flat.end(), data.begin(), data.end());
  }
  return flat;
}

inline ferry::inbound_message unflatten(std::span<const std::byte> flat, const ferry::wire_limits& limits = {}) {
  const auto need = [&](std::uint64_t count) {
    if (count > flat.size()) ferry::throw_error(ferry::errc::truncated, "the message ends early");
  };
  need(ferry::frame_header::encoded_size);
  ferry::inbound_message message;
  message.header = ferry::frame_header::decode(flat.data(), limits);
  flat = flat.subspan(ferry::frame_header::encoded_size);
  need(message.header.body_bytes());
  const auto body = static_cast<std::size_t>(message.header.body_bytes());
  message.storage = ferry::shared_block::allocate(body);
  if (body != 0) std::memcpy(message.storage.data(), flat.data(), body);
  const std::span<const std::byte> stored(message.storage.data(), body);
  const auto payload = static_cast<std::size_t>(message.header.payload_bytes);
  message.payload = stored.first(payload);
  message.extensions = stored.subspan(payload, message.header.extension_bytes);
  message.tensors = ferry::decode_tensor_table(message.header, stored.last(message.header.table_bytes), limits);
  flat = flat.subspan(body);
  need(message.header.tensor_bytes);
  for (auto& tensor : message.tensors) {
    const auto target = ferry::writable_packed_bytes(tensor);
    std::copy_n(flat.begin(), target.size(), target.begin());
    flat = flat.subspan(target.size());
  }
  if (!flat.empty()) ferry::throw_error(ferry::errc::malformed, "bytes follow the message");
  return message;
}
