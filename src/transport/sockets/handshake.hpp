#pragma once

// What both ends of a byte stream send before the first message. docs/protocol.md, section Handshake, specifies every
// byte.
//
//   prefix (20, the same in every protocol version) | body

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/transport/transport.hpp>

#include "../../base/authentication.hpp"

namespace ferry::inline v0::detail {

/// The protocol version of this build, and the oldest one that it still understands.
inline constexpr std::uint32_t protocol_version = 1;
inline constexpr std::uint32_t oldest_protocol_version = 1;

/// Bounds on what is accepted, checked before anything is read or allocated.
inline constexpr std::uint32_t longest_handshake_body = 4096;
inline constexpr std::size_t longest_group = 512;
inline constexpr std::size_t longest_name = 127;
inline constexpr std::size_t longest_refusal = 2048;

/// The first bytes of a hello and of its answer. They differ, so that a socket connected to itself is detected.
inline constexpr std::array<unsigned char, 8> hello_magic{0x89, 'F', 'E', 'R', 'R', 'Y', '>', '\n'};
inline constexpr std::array<unsigned char, 8> answer_magic{0x89, 'F', 'E', 'R', 'R', 'Y', '<', '\n'};

struct handshake_prefix {
  static constexpr std::size_t encoded_size = 20;
  std::uint32_t version = 0;  ///< the newest protocol version of the sender
  std::uint32_t oldest = 0;   ///< the oldest that it understands
  std::uint32_t body_bytes = 0;

  /// Reads encoded_size bytes. Throws errc::handshake_failed if they begin with another magic; `peer` is for the text.
  static handshake_prefix decode(const std::byte* in, const std::array<unsigned char, 8>& magic, std::string_view peer);
  /// Throws errc::handshake_failed if the body is longer than longest_handshake_body.
  void check_size(std::string_view peer) const;
  /// Whether the two ends have a protocol version in common: the smaller of both newest ones.
  [[nodiscard]] bool compatible() const noexcept;
  /// States the protocol versions of the two ends.
  [[nodiscard]] std::string version_text(std::string_view peer) const;
};

/// The other end's reason for refusing the connection.
struct refusal {
  errc code;
  std::string text;
};

/// The accepting end demands a proof of the secret before it continues.
struct challenge {
  nonce once;
};

/// Prefix and body. With a nonce, the hello offers to prove the secret. Throws errc::invalid_argument if a name is too
/// long.
std::vector<std::byte> encode_hello(const hello& self, const nonce* once = nullptr);
std::vector<std::byte> encode_answer(const hello_reply& reply);
/// The text is cut at longest_refusal bytes.
std::vector<std::byte> encode_answer(const refusal& why);
std::vector<std::byte> encode_challenge(const nonce& once);
/// The connecting end's answer to a challenge; `hello` and `challenge` are the complete messages so far.
std::vector<std::byte> encode_proof(std::string_view secret, std::span<const std::byte> hello,
                                    std::span<const std::byte> challenge);
bool check_proof(std::string_view secret, std::span<const std::byte> hello, std::span<const std::byte> challenge,
                 std::span<const std::byte> proof_body);
/// Appends the accepting end's own proof, over all earlier messages and the answer itself.
void sign_answer(std::vector<std::byte>& answer, std::string_view secret, std::span<const std::byte> hello,
                 std::span<const std::byte> challenge);
/// Whether a complete answer ends with that proof.
bool answer_signed(std::span<const std::byte> answer, std::string_view secret, std::span<const std::byte> hello,
                   std::span<const std::byte> challenge);

/// Read a body; bytes after the known fields are skipped, so that later builds may add some. Throw
/// errc::handshake_failed. `once` gets the nonce of a hello that offers a proof.
hello decode_hello(std::span<const std::byte> body, std::optional<nonce>* once = nullptr);
std::variant<hello_reply, refusal, challenge> decode_answer(std::span<const std::byte> body);

}  // namespace ferry::inline v0::detail
