#pragma once

// The secret that the workers of a group share, and its environment variables.

#include <string>

namespace ferry::inline v0 {

/// Whether this build of ferry can prove and check secrets: whether it was built with libcrypto (the Meson option
/// `authentication`, in the one-file form FERRY_WITH_AUTHENTICATION). Without it, giving a secret is an error.
[[nodiscard]] bool authentication_available() noexcept;

/// FERRY_SECRET, else the content of the file that FERRY_SECRET_FILE names, without one newline at its end; empty if
/// neither is set. Throws errc::missing_environment, never with the secret in its text, if the file cannot be read, is
/// empty, is longer than 4096 bytes, or may be read by every user of the machine or changed by any but its owner. Must
/// not run while another thread changes the environment. A build without authentication ignores a
/// FERRY_SECRET that FERRY_SECRET_OPTIONAL repeats, which ferry-run sets beside a secret that it generated itself.
[[nodiscard]] std::string secret_from_environment();

/// Whether FERRY_ALLOW_UNAUTHENTICATED is "1" or "true"; unset, "", "0" and "false" mean no. Throws
/// errc::missing_environment for anything else.
[[nodiscard]] bool unauthenticated_allowed_by_environment();

}  // namespace ferry::inline v0
