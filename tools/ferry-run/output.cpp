#include "output.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ferry_run {

sink::sink(int descriptor) : descriptor_(descriptor) {
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0) return;
  regular_file_ = S_ISREG(facts.st_mode);
  if (S_ISSOCK(facts.st_mode)) way_ = way::socket;
  if (!S_ISFIFO(facts.st_mode) && !S_ISCHR(facts.st_mode)) return;
  unsigned number = 0;
  if (ioctl(descriptor, TIOCGPTN, &number) == 0)
    return;  // on reopening, the master end of a terminal would be a different one
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  opened_ = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (opened_ >= 0) way_ = way::nonblocking;
}

sink::~sink() {
  if (opened_ >= 0) ::close(opened_);
}

long sink::put(const char* bytes, std::size_t count) const noexcept {
  switch (way_) {
    case way::socket:  // may preserve message boundaries, so messages must not be too long
      return send(descriptor_, bytes, std::min<std::size_t>(count, PIPE_BUF), MSG_DONTWAIT | MSG_NOSIGNAL);
    case way::nonblocking: return write(opened_, bytes, count);
    case way::blocking: break;
  }
  // A pipe that poll() reports writable accepts PIPE_BUF bytes without blocking; more might block.
  return write(descriptor_, bytes, regular_file_ ? count : std::min<std::size_t>(count, PIPE_BUF));
}

bool sink::same_target(const sink& other) const {
  struct stat mine {};
  struct stat theirs {};
  return fstat(descriptor_, &mine) == 0 && fstat(other.descriptor_, &theirs) == 0 && mine.st_dev == theirs.st_dev &&
         mine.st_ino == theirs.st_ino;
}

void sink::add_line(std::string_view prefix, std::string_view text) {
  if (broken_) return;
  queue_.append(prefix).append(text).push_back('\n');
}

int sink::write_some() {
  if (broken_ || !pending()) return 0;
  const long written = put(queue_.data() + sent_, queue_.size() - sent_);
  if (written < 0) {
    if (errno == EINTR || errno == EAGAIN) return 0;
    broken_ = true;
    inside_line_ = false;
    queue_.clear();
    sent_ = 0;
    return errno;
  }
  if (written == 0) return 0;
  sent_ += static_cast<std::size_t>(written);
  inside_line_ = queue_[sent_ - 1] != '\n';
  if (sent_ == queue_.size()) {
    queue_.clear();
    sent_ = 0;
  } else if (sent_ > high_water) {
    queue_.erase(0, sent_);
    sent_ = 0;
  }
  return 0;
}

source::source(source&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      prefix_(std::move(other.prefix_)),
      target_(other.target_),
      partial_(std::move(other.partial_)) {}

source& source::operator=(source&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
    prefix_ = std::move(other.prefix_);
    target_ = other.target_;
    partial_ = std::move(other.partial_);
  }
  return *this;
}

source::~source() { close(); }

void source::close() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

bool source::read_some(std::size_t most) {
  std::array<char, buffer_size> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): read() fills it
  ssize_t count = 0;
  do {
    count = read(descriptor_, buffer.data(), std::min(most, buffer.size()));
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    take({buffer.data(), static_cast<std::size_t>(count)});
    return true;
  }
  if (count < 0 && errno == EAGAIN) return false;
  if (!partial_.empty()) target_->add_line(prefix_, partial_);
  partial_.clear();
  close();
  return false;
}

void source::finish() {
  if (!open()) return;
  int there = 0;
  if (ioctl(descriptor_, FIONREAD, &there) != 0) there = 0;
  for (auto left = static_cast<std::size_t>(there); left != 0 && read_some(left); left -= std::min(left, buffer_size)) {
    if (!open()) return;
  }
  if (!open()) return;
  if (!partial_.empty()) target_->add_line(prefix_, partial_);
  partial_.clear();
  close();
}

void source::take(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (end == std::string_view::npos) {
      partial_.append(piece);
      if (partial_.size() >= longest_line) {
        target_->add_line(prefix_, partial_);
        partial_.clear();
      }
      return;
    }
    if (partial_.empty()) {
      target_->add_line(prefix_, piece);
    } else {
      partial_.append(piece);
      target_->add_line(prefix_, partial_);
      partial_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
}

}  // namespace ferry_run
