#pragma once

// The path of the workers' output: bytes from a pipe become lines, lines are queued for ferry-run's own stdout or
// stderr.

#include <cstddef>
#include <string>
#include <string_view>

namespace ferry_run {

/// Lines queued for a descriptor. Never blocks: the owner polls the descriptor and calls write_some().
class sink {
 public:
  explicit sink(int descriptor);
  ~sink();
  sink(const sink&) = delete;
  sink& operator=(const sink&) = delete;

  void add_line(std::string_view prefix, std::string_view text);

  /// The descriptor to poll; differs from the given one if that could be reopened.
  [[nodiscard]] int descriptor() const noexcept { return way_ == way::nonblocking ? opened_ : descriptor_; }
  [[nodiscard]] bool pending() const noexcept { return sent_ < queue_.size(); }
  /// True if so much is queued that nothing more should be read for it.
  [[nodiscard]] bool full() const noexcept { return queue_.size() - sent_ > high_water; }
  /// True if a line has been written in part.
  [[nodiscard]] bool inside_line() const noexcept { return inside_line_; }
  /// True if both write to the same file, pipe or terminal, so that parts of their lines would mix.
  [[nodiscard]] bool same_target(const sink& other) const;

  /// Writes some of the queue; call when poll() reports the descriptor writable. Returns 0, or the errno value after
  /// which nothing is ever written again (EPIPE: no reader).
  int write_some();
  /// True if writing has failed: added lines are dropped.
  [[nodiscard]] bool broken() const noexcept { return broken_; }

 private:
  static constexpr std::size_t high_water = std::size_t{1} << 20U;

  enum class way {
    blocking,     // a file; also any other target that cannot be reopened
    nonblocking,  // a pipe or terminal, reopened: other programs share the flags of the given descriptor
    socket
  };
  [[nodiscard]] long put(const char* bytes, std::size_t count) const noexcept;

  int descriptor_;
  int opened_ = -1;  // the descriptor written to if nonblocking
  way way_ = way::blocking;
  bool regular_file_ = false;
  bool inside_line_ = false;
  bool broken_ = false;
  std::string queue_;
  std::size_t sent_ = 0;
};

/// The read end of one worker's stdout or stderr; owns the descriptor. Splits the bytes into lines for a sink.
class source {
 public:
  source() = default;
  source(int descriptor, std::string prefix, sink& target)
      : descriptor_(descriptor), prefix_(std::move(prefix)), target_(&target) {}
  source(const source&) = delete;
  source& operator=(const source&) = delete;
  source(source&& other) noexcept;
  source& operator=(source&& other) noexcept;
  ~source();

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] bool open() const noexcept { return descriptor_ >= 0; }
  /// True if its sink accepts more.
  [[nodiscard]] bool wanted() const noexcept { return open() && !target_->full(); }

  /// Reads what is available, up to `most` bytes; at the end of the stream also passes on a last line without a line
  /// break. Returns false if nothing was available.
  bool read_some(std::size_t most = buffer_size);
  /// Reads all that is available now and closes: for a worker that has ended, though other processes may hold its pipe
  /// open and write.
  void finish();

 private:
  // A longer line is passed on in pieces, each as a line of its own, so that memory stays bounded.
  static constexpr std::size_t longest_line = std::size_t{1} << 20U;
  static constexpr std::size_t buffer_size = 65536;

  void take(std::string_view bytes);
  void close() noexcept;

  int descriptor_ = -1;
  std::string prefix_;
  sink* target_ = nullptr;
  std::string partial_;
};

}  // namespace ferry_run
