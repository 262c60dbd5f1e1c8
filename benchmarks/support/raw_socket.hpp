#pragma once

// The performance of a bare stream socket: the baselines. The other side is a child process.

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "affinity.hpp"
#include "process.hpp"
#include "statistics.hpp"

namespace ferry_bench {

/// The role of the other side; give it to run_role().
inline constexpr const char* raw_role = "raw";
int serve_raw(const std::vector<std::string>& arguments);

/// How the two sides wait for each other.
enum class waiting : int {
  blocking,  ///< in the system call
  spinning,  ///< in a loop of non-blocking calls
};

/// What a bulk transfer does with its bytes at the other end.
enum class bulk : int {
  warm,   ///< received into the same buffer every time, then answered by a small message
  fresh,  ///< received into newly mapped memory every time, then answered by a small message
  echo,   ///< received into the same buffer, then all sent back
};

/// New memory of the operating system, without pages yet; huge pages are requested, as ferry does for its tensors.
class mapped_memory {
 public:
  explicit mapped_memory(std::size_t size);
  ~mapped_memory();
  mapped_memory(const mapped_memory&) = delete;
  mapped_memory& operator=(const mapped_memory&) = delete;
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::size_t size_;
  std::byte* mapping_;
  std::size_t mapped_;
  std::byte* data_;
};

/// A connected pair of sockets, "tcp" or "unix". Not thread-safe.
class raw_pair {
 public:
  raw_pair(const std::string& kind, pin_mode pin);

  /// Round trips of `bytes` there and back, one at a time; in microseconds.
  std::vector<double> ping_pong(std::size_t bytes, waiting how, std::chrono::nanoseconds window);
  /// Messages of `bytes` per second with `in_flight` in flight. Batched: all of them in one write, answered together by
  /// one write. Else one write and one read for each.
  double stream_messages(std::size_t bytes, std::size_t in_flight, bool batched, std::chrono::nanoseconds window);
  /// Transfers of `bytes`, in microseconds each, at least `least` of them; after one to warm up unless that is 1.
  std::vector<double> transfer(std::size_t bytes, bulk how, waiting wait, std::chrono::nanoseconds window,
                               std::size_t least);

  [[nodiscard]] pid_t peer() const noexcept { return child_.id(); }

 private:
  descriptor socket_;
  child_process child_;
  std::optional<mapped_memory> sent_;
  std::optional<mapped_memory> received_;
};

}  // namespace ferry_bench
