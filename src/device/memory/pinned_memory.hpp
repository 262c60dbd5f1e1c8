#pragma once

// Host memory that devices read and write directly: for tensors that stay there, and for pieces in transit.

#include <cstddef>

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {

/// A block of host memory that a device reads or writes without the host's involvement: for CUDA, page-locked. Blocks
/// come from a pool of the process, in sizes that are powers of two, and return there; a small one may be cut from a
/// larger one that is free. The pool only grows, to the peak usage, since releasing page-locked memory waits for every
/// device. Owns the block. The destructor may run on any thread.
class pinned_block {
 public:
  static constexpr std::size_t smallest_size = 4096;  ///< page-locked memory is allocated in pages

  /// Throws errc::out_of_memory, errc::bad_device, errc::device_failure.
  pinned_block(device where, std::size_t bytes);
  pinned_block(const pinned_block&) = delete;
  pinned_block& operator=(const pinned_block&) = delete;
  ~pinned_block();

  [[nodiscard]] void* data() const noexcept { return memory_; }
  /// A copy to the block is about to be queued: until release_after() confirms that it has been, the block is leaked
  /// rather than reused.
  void begin_use() noexcept { copy_pending_ = true; }
  /// The block is reused only after the work queued on `on` so far has completed. Throws errc::device_failure.
  void release_after(const stream& on);

 private:
  device where_;
  std::size_t size_class_;
  void* memory_ = nullptr;
  event last_use_;
  stream last_on_;  // on which last_use_ was recorded; of the CPU: none was
  bool copy_pending_ = false;
};

/// Adds a block of so many bytes to the pool, from which smaller ones are cut. Throws as the constructor of pinned_block.
void add_pinned_memory(device where, std::size_t bytes);
/// Page-locked memory is taken from all programs of the machine. Blocks may be had at any time; who can do without, or can wait,
/// asks first whether those in use and awaited, with one of `bytes` more, exceed the process's budget: 256 MiB, or what
/// FERRY_PINNED_MEMORY says in MiB. Throws errc::device_failure.
bool pinned_memory_is_short(device where, std::size_t bytes);
/// Waits until they do not; false, at once, if no device is to be waited for: they are all in use by the host. Throws
/// errc::device_timeout if devices make no progress for 30 s.
bool wait_for_pinned_memory(device where, std::size_t bytes);
/// For tests.
void set_pinned_memory_budget(std::size_t bytes) noexcept;

}  // namespace ferry::inline v0::detail
