#pragma once

// The wire format between tcp_store and tcp_store_server; docs/protocol.md, "Store", is the specification.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <ferry/store/store.hpp>

#include "../codec.hpp"

namespace ferry::inline v0::detail::store_wire {

inline constexpr std::string_view magic = "FSTR";
inline constexpr std::uint16_t version = 1;

inline constexpr std::size_t client_hello_bytes = 24;  // magic, version, reserved (2), features (8), client (8)
inline constexpr std::size_t server_hello_bytes =
    32;  // magic, version, status (2), features (8), server (8), limits (4, 4)
inline constexpr std::size_t frame_header_bytes = 8;  // body length (4), operation or status (1), reserved (3)

inline constexpr std::uint64_t feature_authentication = 1;  // client: a nonce follows; server: it has a secret
inline constexpr std::string_view client_role = "ferry store client";
inline constexpr std::string_view server_role = "ferry store server";

enum class hello_status : std::uint16_t {
  welcome = 0,
  other_version = 1,
  too_many_connections = 2,
  challenge = 3,        ///< a nonce follows; the client answers with a proof, the server with a second hello
  other_secret = 4,     ///< the proof is wrong
  secret_required = 5,  ///< the client offered none
  no_secret = 6,        ///< the client offered one, and the server has none
  no_descriptors = 7,   ///< the server's process has run out of them
};

enum class operation : std::uint8_t {
  set = 1,
  get = 2,  ///< with flags: see get_flags
  add = 3,
  compare_set = 4,
  erase = 5,
  list = 6,
  count = 7,
  wait_change = 8,
  cancel = 9,  ///< ends a waiting get or wait_change
};

enum get_flags : std::uint8_t { get_wait = 1, get_values = 2, get_known_flags = 3 };

enum class status : std::uint8_t {
  ok = 0,
  absent = 1,     ///< a get without get_wait: a key does not exist
  cancelled = 2,  ///< the answer to cancel: u32 number of missing keys, u32 number of names, the names
  error = 3,      ///< u16 errc, text
};

/// Bytes that a frame may hold besides values and keys.
inline constexpr std::size_t frame_overhead = 64;
inline constexpr std::size_t max_keys_per_get = 65536;
inline constexpr std::size_t max_missing_named = 8;
inline constexpr std::size_t page_bytes = std::size_t{1} << 20U;  // a list reply ends after the entry that reaches it

/// The longest body of a request, and of any reply, at a server with this value limit.
inline constexpr std::size_t max_body_bytes(std::size_t max_value_bytes) {
  return (max_value_bytes < page_bytes ? page_bytes : max_value_bytes) * 2 + store::max_key_bytes + frame_overhead;
}

inline std::string begin_frame(std::uint8_t kind) {
  std::string frame(frame_header_bytes, '\0');
  frame[4] = static_cast<char>(kind);
  return frame;
}
inline std::string begin(operation what) { return begin_frame(static_cast<std::uint8_t>(what)); }
inline std::string begin(status what) { return begin_frame(static_cast<std::uint8_t>(what)); }

/// Sets the length.
inline void end_frame(std::string& frame) {
  store_le(reinterpret_cast<std::byte*>(frame.data()), static_cast<std::uint32_t>(frame.size() - frame_header_bytes));
}

struct frame_header {
  std::uint32_t length;
  std::uint8_t kind;
};
/// Throws errc::malformed.
inline frame_header read_header(std::string_view bytes) {
  field_reader fields(bytes.substr(0, frame_header_bytes));
  const frame_header header{fields.get<std::uint32_t>(), fields.get<std::uint8_t>()};
  if (fields.take(3) != std::string_view("\0\0\0", 3)) throw_error(errc::malformed, "reserved bytes are not zero");
  return header;
}

}  // namespace ferry::inline v0::detail::store_wire
