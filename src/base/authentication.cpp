#include "authentication.hpp"

#include <cerrno>
#include <vector>

#include <sys/random.h>

#include <ferry/base/error.hpp>
#include <ferry/config.hpp>

#if FERRY_WITH_AUTHENTICATION
  #include <openssl/crypto.h>
  #include <openssl/err.h>
  #include <openssl/evp.h>
  #include <openssl/hmac.h>
#endif

namespace ferry::inline v0 {

bool authentication_available() noexcept {
#if FERRY_WITH_AUTHENTICATION
  return true;
#else
  return false;
#endif
}

namespace detail {
namespace {

// Reads every byte before it returns.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  if (a.size() != b.size()) return false;
  volatile unsigned differs = 0;
  for (std::size_t i = 0; i != a.size(); ++i) differs = differs | std::to_integer<unsigned>(a[i] ^ b[i]);
  return differs == 0;
}

}  // namespace

nonce fresh_nonce() {
  nonce result{};
  for (std::size_t have = 0; have != result.size();) {
    const auto got = ::getrandom(result.data() + have, result.size() - have, 0);
    if (got < 0 && errno != EINTR) throw_errno(errc::system_failure, "getrandom", errno);
    if (got > 0) have += static_cast<std::size_t>(got);
  }
  return result;
}

bool same_proof(const proof& expected, std::span<const std::byte> given) noexcept {
  return equal_in_constant_time(expected, given);
}

bool same_secret(std::string_view a, std::string_view b) noexcept {
  return equal_in_constant_time(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

void check_secret_usable(std::string_view secret) {
  if (secret.empty() || authentication_available()) return;
  throw_error(errc::invalid_argument,
              "a secret was given (an option, FERRY_SECRET or FERRY_SECRET_FILE), but this ferry was built without "
              "authentication; build it with libcrypto (Meson: -Dauthentication=enabled; src/ferry.cpp: "
              "-DFERRY_WITH_AUTHENTICATION=1 and -lcrypto), or remove the secret");
}

#if FERRY_WITH_AUTHENTICATION

namespace {

// libcrypto keeps per-thread state, and never frees that of a thread that ends after the program has unloaded
// libcrypto. Threads of this library may do so, hence none keeps such state; the program's own error queue entries are
// preserved.
class libcrypto_use {
 public:
  libcrypto_use() = default;
  ~libcrypto_use() {
    if (::ERR_peek_error() == 0) ::OPENSSL_thread_stop();
  }
  libcrypto_use(const libcrypto_use&) = delete;
  libcrypto_use& operator=(const libcrypto_use&) = delete;
};

}  // namespace

proof prove(std::string_view secret, std::string_view role, std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::byte> text;
  const auto label = std::as_bytes(std::span(role));
  text.insert(text.end(), label.begin(), label.end());
  text.push_back(std::byte{0});
  for (const auto& part : parts) text.insert(text.end(), part.begin(), part.end());
  proof result{};
  unsigned size = 0;
  // Threads of this library still accept connections while the process exits. If this is the program's first use of libcrypto, it frees
  // nothing then; otherwise this fails once it has.
  if (::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr) == 0)
    throw_error(errc::shutting_down, "the process exits, and libcrypto has ended");
  const libcrypto_use use;
  const auto* made = ::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                            reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                            reinterpret_cast<unsigned char*>(result.data()), &size);
  if (!made || size != result.size()) throw_error(errc::system_failure, "libcrypto could not compute HMAC-SHA256");
  return result;
}

#else

proof prove(std::string_view secret, std::string_view, std::initializer_list<std::span<const std::byte>>) {
  check_secret_usable(secret);
  throw_error(errc::invalid_argument, "there is no secret to prove");
}

#endif

}  // namespace detail
}  // namespace ferry::inline v0
