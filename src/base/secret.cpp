#include <ferry/base/secret.hpp>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/time.hpp>

#include "authentication.hpp"
#include "unique_fd.hpp"

namespace ferry::inline v0 {

using detail::longest_secret;

namespace detail {
namespace {

constexpr std::chrono::seconds pipe_limit{5};

std::string_view environment_text(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string read_secret(const std::string& path) {
  const auto unusable = [&](std::string_view why) {
    throw_error(errc::missing_environment, fmt::format("FERRY_SECRET_FILE names {}: {}", path, why));
  };
  const auto failed = [&](int reason) { unusable(std::generic_category().message(reason)); };
  // A pipe without a writer, or with one that writes nothing, must not block.
  const auto limit = deadline::after(pipe_limit);
  const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) failed(errno);
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) failed(errno);
  if (S_ISDIR(about.st_mode)) unusable("it is a directory; name a file that holds the secret");
  if ((about.st_mode & (S_IROTH | S_IWOTH | S_IWGRP)) != 0) {
    unusable(fmt::format("every user of this machine may read it, or others than its owner may change it; chmod 600 {}",
                         path));
  }
  std::string result(longest_secret + 2, '\0');  // with the newline, and one byte too many
  std::size_t have = 0;
  while (have != result.size()) {
    const auto got = ::read(file.get(), result.data() + have, result.size() - have);
    if (got == 0) break;
    if (got > 0) have += static_cast<std::size_t>(got);
    if (got >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) failed(errno);
    pollfd readable{file.get(), POLLIN, 0};
    if (limit.expired() || ::poll(&readable, 1, 100) < 0) unusable("it is a pipe, and no secret came out of it in 5 s");
  }
  result.resize(have);
  if (result.ends_with('\n')) result.pop_back();
  if (result.ends_with('\r')) result.pop_back();
  if (result.empty()) unusable("it is empty; leave the variable unset for no secret");
  if (result.size() > longest_secret) unusable(fmt::format("it has more than {} bytes", longest_secret));
  return result;
}

}  // namespace
}  // namespace detail

std::string secret_from_environment() {
  if (const auto secret = detail::environment_text("FERRY_SECRET"); !secret.empty()) {
    // The secret that ferry-run generates for a run on one machine is optional. FERRY_SECRET_OPTIONAL repeats it, so that
    // the mark does not apply to another secret that a worker gives to a job of its own.
    const bool optional = secret == detail::environment_text("FERRY_SECRET_OPTIONAL");
    return optional && !authentication_available() ? std::string() : std::string(secret);
  }
  if (const auto path = detail::environment_text("FERRY_SECRET_FILE"); !path.empty())
    return detail::read_secret(std::string(path));
  return {};
}

bool unauthenticated_allowed_by_environment() {
  const auto value = detail::environment_text("FERRY_ALLOW_UNAUTHENTICATED");
  if (value.empty() || value == "0" || value == "false") return false;
  if (value == "1" || value == "true") return true;
  throw_error(errc::missing_environment,
              fmt::format("FERRY_ALLOW_UNAUTHENTICATED is '{}'; it must be 1 or 0 (true or false)", value));
}

}  // namespace ferry::inline v0
