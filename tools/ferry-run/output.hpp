#pragma once

// The way of the workers' output: bytes from a pipe become lines, lines wait for ferry-run's own stdout or stderr.

#include <cstddef>
#include <string>
#include <string_view>

namespace ferry_run {

/// Lines that wait to be written to a descriptor. Never blocks: the owner polls the descriptor and calls write_some().
class sink {
 public:
  explicit sink(int descriptor);
  ~sink();
  sink(const sink&) = delete;
  sink& operator=(const sink&) = delete;

  void add_line(std::string_view prefix, std::string_view text);

  /// What is to be polled; another one than was given where that could be opened once more.
  [[nodiscard]] int descriptor() const noexcept { return way_ == way::nonblocking ? opened_ : descriptor_; }
  [[nodiscard]] bool pending() const noexcept { return sent_ < queue_.size(); }
  /// True if so much waits that nothing more should be read for it.
  [[nodiscard]] bool full() const noexcept { return queue_.size() - sent_ > high_water; }
  /// True if a line has been written in part.
  [[nodiscard]] bool inside_line() const noexcept { return inside_line_; }
  /// True if both write to the same file, pipe or terminal, so that parts of their lines would mix.
  [[nodiscard]] bool same_target(const sink& other) const;

  /// Writes some of what waits; call when poll() says that the descriptor takes it. Returns 0, or the errno value after
  /// which nothing is ever written again (EPIPE: the reader has gone).
  int write_some();
  /// True if writing has failed: what is added is dropped.
  [[nodiscard]] bool broken() const noexcept { return broken_; }

 private:
  static constexpr std::size_t high_water = std::size_t{1} << 20U;

  enum class way {
    blocking,     // a file; of anything else what cannot be opened again
    nonblocking,  // a pipe or terminal, opened once more: the flag of the given descriptor is that of other programs, too
    socket
  };
  [[nodiscard]] long put(const char* bytes, std::size_t count) const noexcept;

  int descriptor_;
  int opened_ = -1;  // nonblocking: what is written to
  way way_ = way::blocking;
  bool regular_file_ = false;
  bool inside_line_ = false;
  bool broken_ = false;
  std::string queue_;
  std::size_t sent_ = 0;
};

/// The read end of one worker's stdout or stderr; owns the descriptor. Cuts what comes into lines for a sink.
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
  /// True if its sink takes more.
  [[nodiscard]] bool wanted() const noexcept { return open() && !target_->full(); }

  /// Reads what is there, up to so many bytes; at the end of the stream also passes on a last line without a line break.
  /// Returns false if nothing was there.
  bool read_some(std::size_t most = buffer_size);
  /// Reads all that is there now and closes: for a worker that has ended, though others may hold its pipe open, and write.
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
