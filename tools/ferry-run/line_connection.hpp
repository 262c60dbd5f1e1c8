#pragma once

// Lines of text over a socket.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ferry_run {

/// Owns a connected non-blocking socket. Errors are reported as the end of the connection.
class line_connection {
 public:
  static constexpr std::size_t longest_line = 2000;

  explicit line_connection(int descriptor) noexcept : descriptor_(descriptor) {}
  line_connection(const line_connection&) = delete;
  line_connection& operator=(const line_connection&) = delete;
  ~line_connection();

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  /// The events to poll for.
  [[nodiscard]] short events() const noexcept;
  /// Sends a line, truncated if it is too long; what the socket does not accept now is sent by advance().
  void send(std::string line);
  /// Reads and writes what is possible now. False when the peer has closed or violates the protocol; lines received
  /// before are still available.
  bool advance();
  [[nodiscard]] std::optional<std::string> next_line();

 private:
  static constexpr std::size_t high_water = 64 * 1024;
  void flush();

  int descriptor_;
  bool broken_ = false;
  std::string in_;
  std::string out_;
};

}  // namespace ferry_run
