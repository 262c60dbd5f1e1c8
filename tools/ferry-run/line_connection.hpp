#pragma once

// Lines of text over a socket.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ferry_run {

/// Owns a connected socket that does not block. What goes wrong looks like the end of the connection.
class line_connection {
 public:
  static constexpr std::size_t longest_line = 2000;

  explicit line_connection(int descriptor) noexcept : descriptor_(descriptor) {}
  line_connection(const line_connection&) = delete;
  line_connection& operator=(const line_connection&) = delete;
  ~line_connection();

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  /// What to poll for.
  [[nodiscard]] short events() const noexcept;
  /// Sends a line, cut if it is too long; what the socket does not take now goes out in advance().
  void send(std::string line);
  /// Reads and writes what is possible now. False when the other end has closed or sends what no ferry-run sends; lines
  /// that came before are still there.
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
