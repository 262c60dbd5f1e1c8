#include "line_connection.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace ferry_run {

line_connection::~line_connection() { close(descriptor_); }

short line_connection::events() const noexcept { return static_cast<short>(out_.empty() ? POLLIN : POLLIN | POLLOUT); }

void line_connection::send(std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  line.resize(std::min(line.size(), longest_line));
  if (out_.size() > high_water) broken_ = true;  // the peer does not read
  if (broken_) return;
  out_ += line + '\n';
  flush();
}

void line_connection::flush() {
  while (!out_.empty()) {
    const ssize_t sent = ::send(descriptor_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      // Broken only when nothing more can be read either: the peer may have sent why it closed.
      if (errno != EAGAIN && errno != EWOULDBLOCK) out_.clear();
      return;
    }
    out_.erase(0, static_cast<std::size_t>(sent));
  }
}

bool line_connection::advance() {
  flush();
  std::array<char, 4096> buffer{};
  while (!broken_) {
    const ssize_t count = recv(descriptor_, buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count <= 0) {
      broken_ = true;
      break;
    }
    in_.append(buffer.data(), static_cast<std::size_t>(count));
    // One line too long, or more lines than the protocol has.
    if (in_.size() > high_water || (in_.find('\n') == std::string::npos && in_.size() > longest_line)) broken_ = true;
  }
  return !broken_;
}

std::optional<std::string> line_connection::next_line() {
  const auto end = in_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = in_.substr(0, end);
  in_.erase(0, end + 1);
  // Whatever reaches the port may have sent it, and much of it is shown.
  for (char& each : line) {
    if (static_cast<unsigned char>(each) < ' ' || each == 0x7f) each = '?';
  }
  return line;
}

}  // namespace ferry_run
