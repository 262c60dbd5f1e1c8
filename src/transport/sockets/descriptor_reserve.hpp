#pragma once

// What a process that has run out of file descriptors needs to go on: to accept, and to hear that others live.

#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "../../base/unique_fd.hpp"

namespace ferry::inline v0::detail {

/// The process's descriptors held back. Connections for control may use them, and a handshake, until it is known what
/// its connection is for. Connections for data are opened and accepted only while the reserve is full. Thread-safe.
class descriptor_reserve {
 public:
  static descriptor_reserve& of_process();
  /// Only these may be held by handshakes: control connections leave them.
  static constexpr std::size_t kept_for_handshakes = 2;

  /// Holds back a sixteenth of what the process may open now, 4 to 64.
  descriptor_reserve();
  explicit descriptor_reserve(std::size_t size) : size_(size) {}

  /// Fills it up as far as there are descriptors; true if it is full.
  bool fill() noexcept;
  /// Frees a descriptor, for the caller to open something at once; false if there are at most `kept`.
  bool release_one(std::size_t kept) noexcept;
  /// Closes `fd`. Its place goes to the reserve, and to no other thread, if that is not full.
  void take_back(unique_fd fd) noexcept;
  [[nodiscard]] bool holds_more_than(std::size_t kept) const noexcept;

  /// errno says that this process, or the machine, has run out of descriptors or of memory for sockets.
  [[nodiscard]] static bool is_shortage(int system_error) noexcept;
  /// For errors: the limit, and what to do.
  [[nodiscard]] static std::string advice(int system_error);
  /// Logs a warning, at most once in a minute.
  void warn(std::string_view what, int system_error) noexcept;

 private:
  const std::size_t size_;
  mutable std::mutex mutex_;  // guards what follows
  unique_fd source_;          // of which the others are duplicates
  std::vector<unique_fd> held_;
  std::chrono::steady_clock::time_point next_warning_;
};

/// Frees a descriptor for a step of a handshake that opens one and closes it again, and fills the reserve up afterwards,
/// however the step ends.
class descriptor_loan {
 public:
  descriptor_loan() noexcept { descriptor_reserve::of_process().release_one(0); }
  descriptor_loan(const descriptor_loan&) = delete;
  descriptor_loan& operator=(const descriptor_loan&) = delete;
  ~descriptor_loan() { descriptor_reserve::of_process().fill(); }
};

}  // namespace ferry::inline v0::detail
