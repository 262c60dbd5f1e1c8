#pragma once

// The bytes behind tensors: one block on one device, shared by all views of it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <ferry/device/device.hpp>

namespace ferry::inline v0 {

class stream;

namespace detail {

struct storage_body {
  std::atomic<std::uint32_t> references{1};
  bool allocated = false;        // from the pool of the CPU, or
  bool shared = false;           // from the memory that other processes read
  bool in_stream_order = false;  // `owner` is a device_memory
  ferry::device where;
  std::atomic<std::uint64_t> version{0};
  void* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<const void> owner;  // of other memory
};

}  // namespace detail

/// A reference-counted block of bytes. A handle: copies refer to the same block. The count and the version may be used
/// from any thread; the bytes are not synchronised.
class storage {
 public:
  /// No block.
  storage() noexcept = default;
  storage(const storage& other) noexcept : body_(other.body_) {
    if (body_) body_->references.fetch_add(1, std::memory_order_relaxed);
  }
  storage(storage&& other) noexcept : body_(std::exchange(other.body_, nullptr)) {}
  storage& operator=(storage other) noexcept {
    std::swap(body_, other.body_);
    return *this;
  }
  ~storage() {
    if (body_ && body_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy(body_);
  }

  /// A new block of uninitialised bytes from the device's allocator, on a 64-byte boundary (small ones on the CPU too).
  /// On a device with streams it is usable, and freed, in the order of the calling thread's current stream. Throws
  /// errc::out_of_memory, errc::bad_device, errc::device_failure.
  static storage allocate(std::size_t bytes, ferry::device where = {});
  /// Memory allocated elsewhere, valid as long as `owner` lives: released on whatever thread when the last reference was
  /// dropped and the streams of record_use() are done. Without an owner the memory counts as borrowed.
  static storage foreign(void* data, std::size_t bytes, ferry::device where, std::shared_ptr<const void> owner);

  [[nodiscard]] bool defined() const noexcept { return body_ != nullptr; }
  [[nodiscard]] bool same_as(const storage& other) const noexcept { return body_ == other.body_; }
  // The following need a block.
  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(body_->data); }
  [[nodiscard]] std::size_t size() const noexcept { return body_->size; }
  [[nodiscard]] ferry::device device() const noexcept { return body_->where; }
  /// False for memory that is only borrowed and might be freed before the tensor is.
  [[nodiscard]] bool owns_memory() const noexcept {
    return body_->allocated || body_->owner != nullptr || body_->size == 0;
  }
  /// Whether ferry allocated it on a device with streams: it may be released before they are done with it.
  [[nodiscard]] bool in_stream_order() const noexcept { return body_->in_stream_order; }
  /// Whether other processes of the machine can read it in place (ferry/tensor/shared_allocator.hpp).
  [[nodiscard]] bool in_shared_memory() const noexcept { return body_->shared; }
  /// Counts writes in place, through any view; users of old values compare it.
  [[nodiscard]] std::uint64_t version() const noexcept { return body_->version.load(std::memory_order_acquire); }
  void bump_version() const noexcept { body_->version.fetch_add(1, std::memory_order_acq_rel); }
  /// Records that `by` uses the block, too: it is not reused, nor is the owner of foreign memory released, before all
  /// work queued on `by` until the last reference is dropped has completed. No effect on borrowed memory. Thread-safe.
  /// See device_memory::record_use.
  void record_use(const stream& by) const;
  [[nodiscard]] std::size_t use_count() const noexcept { return body_->references.load(std::memory_order_relaxed); }
  /// Whether this is the only handle of a block of the CPU that ferry allocated: no other code can get at the bytes but by
  /// an address that it has kept. What earlier owners did to the bytes has happened before.
  [[nodiscard]] bool solely_owned() const noexcept {
    return body_->allocated && body_->references.load(std::memory_order_acquire) == 1;
  }
  /// Of a solely owned block: its writes are counted anew.
  void forget_writes() const noexcept { body_->version.store(0, std::memory_order_relaxed); }

 private:
  static void destroy(detail::storage_body* body) noexcept;
  detail::storage_body* body_ = nullptr;
};

}  // namespace ferry::inline v0
