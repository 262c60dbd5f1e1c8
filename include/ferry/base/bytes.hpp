#pragma once

// Contiguous byte memory of messages.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace ferry::inline v0 {

/// A growable, uninitialised, contiguous byte buffer; the sole owner of its memory. Small blocks come from a per-thread
/// cache, so a short-lived buffer costs no allocation. Not thread-safe; may be moved to another thread.
class byte_buffer {
 public:
  byte_buffer() noexcept = default;
  byte_buffer(byte_buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  byte_buffer& operator=(byte_buffer&& other) noexcept {
    if (this != &other) {
      release();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
      capacity_ = std::exchange(other.capacity_, 0);
    }
    return *this;
  }
  byte_buffer(const byte_buffer&) = delete;
  byte_buffer& operator=(const byte_buffer&) = delete;
  ~byte_buffer() { release(); }

  [[nodiscard]] std::byte* data() noexcept { return data_; }
  [[nodiscard]] const std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

  /// Appends `count` uninitialised bytes and returns where they start. Throws std::bad_alloc.
  std::byte* extend(std::size_t count) {
    if (capacity_ - size_ < count) grow(count);
    std::byte* at = data_ + size_;
    size_ += count;
    return at;
  }
  void append(const void* source, std::size_t count) {
    if (count != 0) std::memcpy(extend(count), source, count);
  }
  /// Drops bytes from the end. `size` must not exceed size().
  void truncate(std::size_t size) noexcept { size_ = size; }
  void clear() noexcept { size_ = 0; }
  void reserve(std::size_t capacity) {
    if (capacity > capacity_) grow(capacity - size_);
  }

 private:
  void grow(std::size_t more);
  void release() noexcept;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

/// Owner of a malloc-like block shared by several readers; received bytes stay alive while any shared_block refers to
/// them. Copies are cheap (one atomic increment) and may be used from several threads; the bytes are not synchronised.
class shared_block {
 public:
  shared_block() noexcept = default;
  /// An uninitialised block of at least `capacity` bytes. Throws std::bad_alloc.
  static shared_block allocate(std::size_t capacity);
  /// The bytes of `buffer`: takes its memory if it is large, else copies. Throws std::bad_alloc.
  static shared_block adopt(byte_buffer&& buffer);
  shared_block(const shared_block& other) noexcept;
  shared_block(shared_block&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  shared_block& operator=(shared_block other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~shared_block() { reset(); }

  void reset() noexcept;
  [[nodiscard]] explicit operator bool() const noexcept { return block_ != nullptr; }
  [[nodiscard]] std::byte* data() const noexcept;
  [[nodiscard]] std::size_t capacity() const noexcept;
  /// True if no other shared_block refers to the memory, so it may be overwritten.
  [[nodiscard]] bool unique() const noexcept;

 private:
  struct header;
  header* block_ = nullptr;
};

}  // namespace ferry::inline v0
