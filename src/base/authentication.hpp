#pragma once

// Proofs of a shared secret: HMAC-SHA256 over what both ends of a connection have sent (docs/protocol.md,
// Authentication).

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include <ferry/base/secret.hpp>

namespace ferry::inline v0::detail {

inline constexpr std::size_t longest_secret = 4096;

/// Sent once by each end, so that a proof cannot be replayed.
using nonce = std::array<std::byte, 32>;
using proof = std::array<std::byte, 32>;

/// From the system's generator. Throws errc::system_failure.
nonce fresh_nonce();

/// The proof of `secret` over the role, a zero byte, and the parts. Each role is used by one end only, so that a proof
/// cannot be reflected to its sender. Leaves no libcrypto state behind in this thread. Throws errc::invalid_argument in
/// a build without authentication.
proof prove(std::string_view secret, std::string_view role, std::initializer_list<std::span<const std::byte>> parts);

/// Constant time, whatever the bytes are.
[[nodiscard]] bool same_proof(const proof& expected, std::span<const std::byte> given) noexcept;
/// The same for secrets; the duration reveals only whether their lengths differ.
[[nodiscard]] bool same_secret(std::string_view a, std::string_view b) noexcept;

/// Throws errc::invalid_argument for a secret that this build cannot prove.
void check_secret_usable(std::string_view secret);

}  // namespace ferry::inline v0::detail
