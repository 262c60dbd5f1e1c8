#include "descriptor_reserve.hpp"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>
#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::minutes between_warnings{1};

rlim_t most_descriptors() noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

std::size_t reserve_size() noexcept {
  constexpr rlim_t least = 4;
  constexpr rlim_t most = 64;
  return static_cast<std::size_t>(std::clamp(most_descriptors() / 16, least, most));
}

}  // namespace

descriptor_reserve& descriptor_reserve::of_process() {
  static auto* instance = new descriptor_reserve;  // outlives static destruction on purpose
  return *instance;
}

descriptor_reserve::descriptor_reserve() : descriptor_reserve(reserve_size()) {}

bool descriptor_reserve::fill() noexcept {
  const std::lock_guard lock(mutex_);
  if (held_.size() == size_) return true;
  try {
    held_.reserve(size_);
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (!source_) source_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  while (source_ && held_.size() != size_) {
    unique_fd more(::fcntl(source_.get(), F_DUPFD_CLOEXEC, 0));
    if (!more) return false;
    held_.push_back(std::move(more));
  }
  return held_.size() == size_;
}

bool descriptor_reserve::release_one(std::size_t kept) noexcept {
  const std::lock_guard lock(mutex_);
  if (held_.size() <= kept) return false;
  held_.pop_back();
  return true;
}

void descriptor_reserve::take_back(unique_fd fd) noexcept {
  if (!fd) return;
  const std::lock_guard lock(mutex_);
  if (!source_ || held_.size() >= size_ || held_.capacity() == held_.size()) return;
  // In one step: once the descriptor is free, any other thread may get it.
  if (::dup3(source_.get(), fd.get(), O_CLOEXEC) >= 0) held_.push_back(std::move(fd));
}

bool descriptor_reserve::holds_more_than(std::size_t kept) const noexcept {
  const std::lock_guard lock(mutex_);
  return held_.size() > kept;
}

bool descriptor_reserve::is_shortage(int system_error) noexcept {
  return system_error == EMFILE || system_error == ENFILE || system_error == ENOBUFS || system_error == ENOMEM;
}

std::string descriptor_reserve::advice(int system_error) {
  if (system_error == ENFILE)
    return "the machine has run out of open files (fs.file-max): raise that limit, or run fewer processes";
  if (system_error != EMFILE) return "the machine has no memory for sockets left: run fewer processes";
  return fmt::format(
      "the process has run out of file descriptors (RLIMIT_NOFILE is {}): raise that limit (ulimit -n), or run "
      "fewer workers in one process",
      most_descriptors());
}

void descriptor_reserve::warn(std::string_view what, int system_error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (now < next_warning_) return;
    next_warning_ = now + between_warnings;
  }
  try {
    log(log_level::warning,
        fmt::format(
            "{}: {}. Until some are free, calls that need a new connection fail; {} are held back for heartbeats "
            "and for accepting",
            what, advice(system_error), size_));
  } catch (const std::exception& e) {
    log(log_level::warning, e.what());
  }
}

}  // namespace ferry::inline v0::detail
