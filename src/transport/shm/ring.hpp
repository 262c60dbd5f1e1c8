#pragma once

// One direction of a byte stream through shared memory: a ring with one writing and one reading process.
//
// The other process may write anything anywhere in the shared memory, at any time. So each end keeps its own index in
// memory of its own, reads the other end's index once and checks it before use; an index that is out of range breaks the
// ring for good (broken()). Bytes are copied out before they are looked at.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <sys/uio.h>

namespace ferry::inline v0::detail {

/// The part of a ring that both processes change. The indices count bytes since the beginning and never wrap around.
/// A flag is set by an end before it sleeps, after which it looks at the ring once more; the end that clears the flag
/// has to wake it. All accesses of this protocol are sequentially consistent, so that one of the two sees the other.
struct ring_control {
  alignas(128) std::uint64_t written = 0;   ///< by the writer
  alignas(128) std::uint64_t consumed = 0;  ///< by the reader
  alignas(128) std::uint32_t reader_sleeps = 0;
  alignas(128) std::uint32_t writer_sleeps = 0;
};
static_assert(sizeof(ring_control) == 512);

/// What both ends share; private.
class ring_end {
 public:
  /// `data` has a power of two of bytes. Both outlive this. `identity` is the same for both ends, and for no other ring of
  /// this process: it tells the thread sanitizer what is ordered.
  ring_end(ring_control& control, std::span<std::byte> data, std::uint64_t identity = 0) noexcept
      : control_(&control), data_(data), identity_(identity) {}
  /// The other end's index was out of range; nothing more is moved.
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return data_.size(); }

 protected:
  [[nodiscard]] std::size_t offset(std::uint64_t index) const noexcept {
    return static_cast<std::size_t>(index) & (data_.size() - 1);
  }

  ring_control* control_;
  std::span<std::byte> data_;
  std::uint64_t identity_;
  bool broken_ = false;
};

/// Not thread-safe.
class ring_writer : public ring_end {
 public:
  using ring_end::ring_end;

  /// Copies as much as there is room for and returns how much. `wake` is set if the reader has to be woken.
  std::size_t write(std::span<const iovec> from, bool& wake) noexcept;
  /// The bytes that can be written.
  [[nodiscard]] std::size_t room() noexcept;
  /// Whether the reader has said that it sleeps. A hint; thread-safe.
  [[nodiscard]] bool reader_sleeps() const noexcept;
  /// Before sleeping until there is room: true if there is some by now. May be called again.
  [[nodiscard]] bool announce_sleep() noexcept;
  /// For another reason than bytes: whether the reader sleeps, and has to be woken. Thread-safe.
  [[nodiscard]] bool take_reader_sleep() noexcept;

 private:
  std::uint64_t written_ = 0;
  std::uint64_t consumed_ = 0;  // as it was last seen
};

/// Not thread-safe, except for announce_sleep() and withdraw_sleep().
class ring_reader : public ring_end {
 public:
  using ring_end::ring_end;

  /// Copies what is there and returns how much. `wake` is set if the writer has to be woken.
  std::size_t read(std::span<const iovec> into, bool& wake) noexcept;
  /// Whether read() would find something. Costs a look at one variable.
  [[nodiscard]] bool has_input() const noexcept;
  /// Before sleeping until there are bytes: true if there are some by now, or the index is not what was read last.
  [[nodiscard]] bool announce_sleep() noexcept;
  /// After it: the writer need not wake this end.
  void withdraw_sleep() noexcept;

 private:
  std::atomic<std::uint64_t> consumed_{0};  // written by the reading thread
};

}  // namespace ferry::inline v0::detail
