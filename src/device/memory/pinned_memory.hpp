#pragma once

// Memory of the host that devices read and write on their own: of tensors that stay there, and of pieces on their way.

#include <cstddef>

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {

/// A block of host memory that a device reads or writes without the host having a part in it: of CUDA, page-locked. Blocks
/// come from a pool of the process, in sizes that are powers of two, and return there; the pool only grows, to what was
/// in use at one time, since to give page-locked memory back waits for every device. Owns the block. The destructor may
/// run on any thread.
class pinned_block {
 public:
  static constexpr std::size_t smallest_size = 4096;  ///< page-locked memory comes in pages

  /// Throws errc::out_of_memory, errc::bad_device, errc::device_failure.
  pinned_block(device where, std::size_t bytes);
  pinned_block(const pinned_block&) = delete;
  pinned_block& operator=(const pinned_block&) = delete;
  ~pinned_block();

  [[nodiscard]] void* data() const noexcept { return memory_; }
  /// A copy to the block is about to be queued: until release_after() says that it has been, the block is
  /// lost rather than used again.
  void begin_use() noexcept { in_doubt_ = true; }
  /// The block is used again only once `on` has done what it was given until now. Throws errc::device_failure.
  void release_after(const stream& on);

 private:
  device where_;
  std::size_t size_class_;
  void* memory_ = nullptr;
  event last_use_;
  bool in_doubt_ = false;
};

}  // namespace ferry::inline v0::detail
