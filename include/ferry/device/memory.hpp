#pragma once

// Memory of devices, allocated and freed in stream order: the host never waits, and no block is reused while a stream
// recorded as its user has work left.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>

namespace ferry::inline v0 {

/// A block of memory of one device. Owns it; moves leave an empty block. record_use() may be called from several
/// threads at once; the destructor may run on any thread and does not wait.
class device_memory {
 public:
  /// No block.
  device_memory() noexcept;
  /// At least `bytes` uninitialised bytes on a 64-byte boundary of on.device(), which may be used in the order of `on`;
  /// no block for 0 bytes. If there is no memory, waits up to five seconds for blocks that were given up while streams
  /// used them. Throws errc::out_of_memory, after the pool's unused memory has been released (the text has the device,
  /// the size and what is in use), errc::bad_device, errc::device_failure (also if `on` is capturing).
  device_memory(const stream& on, std::size_t bytes);
  device_memory(device_memory&& other) noexcept;
  device_memory& operator=(device_memory&& other) noexcept;
  /// Frees the block: in the order of the stream it was made on, and after the work queued by now on the streams of
  /// record_use(). A block that streams still use is parked, and freed when these are done; blocks of other streams do
  /// not wait for it.
  /// After the device has failed, or when the driver is unloaded at process end, the block is leaked.
  ~device_memory();

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] ferry::device device() const noexcept { return made_on_.device(); }
  /// The stream on which it was made.
  [[nodiscard]] const ferry::stream& stream() const noexcept { return made_on_; }

  /// Records that `by`, of any device of the kind, uses the block, too: it is reused only after all work queued on `by`
  /// until the block is freed. The stream must exist as long as the block.
  void record_use(const ferry::stream& by);

 private:
  struct users;
  ferry::stream made_on_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
  std::unique_ptr<users> users_;  // of blocks of devices with streams
};

/// A snapshot of this process's use of a device's memory. The figures may be from slightly different moments.
struct device_memory_stats {
  std::uint64_t blocks = 0;             ///< of device_memory, in use
  std::uint64_t used_bytes = 0;         ///< in these blocks
  std::uint64_t reserved_bytes = 0;     ///< held by the pool, in use or cached; 0 for kinds without a pool
  std::uint64_t peak_used_bytes = 0;    ///< the maximum of used_bytes
  std::uint64_t total_allocations = 0;  ///< blocks made since the start
  std::uint64_t parked_blocks = 0;      ///< given up, but not free yet: streams have work left that uses them
  std::uint64_t parked_bytes = 0;       ///< in these blocks
  std::uint64_t memory_waits = 0;       ///< how often an allocation had to wait for parked blocks
};
/// For the CPU only blocks made as device_memory (see cpu_pool.hpp). Does not create a context. Throws
/// errc::bad_device. Thread-safe.
/// errc::bad_device. Thread-safe.
[[nodiscard]] device_memory_stats get_device_memory_stats(device where);

/// A snapshot of the page-locked host memory that this process uses for tensors in transit from and to devices of one
/// kind.
struct staging_memory_stats {
  std::uint64_t blocks_in_use = 0;   ///< by messages, and by tensors on the CPU that devices wrote
  std::uint64_t blocks_awaited = 0;  ///< freed, and reused once a device has finished with them
  std::uint64_t blocks_lost = 0;     ///< leaked, since their device failed while it used them
  std::uint64_t reserved_bytes = 0;  ///< of all existing blocks
};
/// Throws errc::device_failure. Thread-safe.
staging_memory_stats get_staging_memory_stats(device_kind kind);

/// Releases cached device memory that is not in use to the device; not blocks freed in the order of a stream that has not
/// reached that point. Page-locked memory of the host, for copies from and to the device, is kept: to release it, CUDA waits
/// for all devices. Throws errc::bad_device, errc::device_failure. Thread-safe.
void device_memory_trim(device where);

}  // namespace ferry::inline v0
