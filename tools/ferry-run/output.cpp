#include "output.hpp"

#include <array>
#include <cerrno>
#include <climits>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

namespace ferry_run {

sink::sink(int descriptor) : descriptor_(descriptor) {
  struct stat facts {};
  regular_file_ = fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode);
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
  std::size_t count = queue_.size() - sent_;
  // A pipe or terminal that poll() calls writable takes PIPE_BUF bytes without blocking, more might block.
  if (!regular_file_ && count > PIPE_BUF) count = PIPE_BUF;
  const ssize_t written = write(descriptor_, queue_.data() + sent_, count);
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

bool source::read_some() {
  std::array<char, 65536> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): read() fills it
  ssize_t count = 0;
  do {
    count = read(descriptor_, buffer.data(), buffer.size());
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
  while (open() && read_some()) {
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
