#pragma once

// Memory of devices, which is had and given back in the order of streams: the host never waits, and no block is used again
// while a stream that was said to use it has work left.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>

namespace ferry::inline v0 {

/// A block of memory of one device. Owns it; moves leave an empty block. Thread-safe are record_use(), from several threads
/// at once, and the destructor, on any thread, which does not wait.
class device_memory {
 public:
  /// No block.
  device_memory() noexcept;
  /// At least `bytes` uninitialised bytes on a 64-byte boundary of on.device(), which may be used in the order of `on`; none
  /// for 0 bytes. Throws errc::out_of_memory, after what the device's pool keeps was given back (the text has the device, the
  /// size and what is in use), errc::bad_device, errc::device_failure.
  device_memory(const stream& on, std::size_t bytes);
  device_memory(device_memory&& other) noexcept;
  device_memory& operator=(device_memory&& other) noexcept;
  /// Gives the block back: in the order of the stream it was made on, and after all that the streams of record_use() were
  /// given by now. After the device has failed, and when the process ends and the driver is gone, the block is lost.
  ~device_memory();

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] ferry::device device() const noexcept { return made_on_.device(); }
  /// On which it was made.
  [[nodiscard]] const ferry::stream& stream() const noexcept { return made_on_; }

  /// `by`, of any device of the kind, uses the block, too: it is used again only after all that `by` was given until the
  /// block is given back. The stream must exist as long as the block.
  void record_use(const ferry::stream& by);

 private:
  struct users;
  ferry::stream made_on_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
  std::unique_ptr<users> users_;  // of blocks of devices with streams
};

/// A snapshot of what this process has of a device's memory. The figures may be from slightly different moments.
struct device_memory_stats {
  std::uint64_t blocks = 0;           ///< of device_memory, in use
  std::uint64_t used_bytes = 0;       ///< in these blocks
  std::uint64_t reserved_bytes = 0;   ///< that the pool has from the device, in use or kept; 0 for kinds without a pool
  std::uint64_t peak_used_bytes = 0;  ///< the most that used_bytes has been
  std::uint64_t total_allocations = 0;  ///< blocks made since the start
};
/// Of the CPU only the blocks that were made as device_memory (see cpu_pool.hpp). Does not create a context. Throws
/// errc::bad_device. Thread-safe.
[[nodiscard]] device_memory_stats get_device_memory_stats(device where);

/// A snapshot of the page-locked memory of the host that this process uses for tensors on their way from and to devices of one kind.
struct staging_memory_stats {
  std::uint64_t blocks_in_use = 0;   ///< by messages, and by tensors on the CPU that devices wrote
  std::uint64_t blocks_awaited = 0;  ///< given back, and used again once a device has done with them
  std::uint64_t blocks_lost = 0;     ///< for good, since their device failed while it used them
  std::uint64_t reserved_bytes = 0;  ///< of all blocks that there are
};
/// Throws errc::device_failure. Thread-safe.
staging_memory_stats get_staging_memory_stats(device_kind kind);

/// Gives what is kept and not in use back to the device, and the host's memory for copies from and to it back to the
/// system: not what was given back to the pool in the order of a stream that has yet to get there. CUDA may wait for the
/// device when page-locked memory goes. Throws errc::bad_device, errc::device_failure. Thread-safe.
void device_memory_trim(device where);

}  // namespace ferry::inline v0
