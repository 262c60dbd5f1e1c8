#pragma once

// Memory of this process's GPUs that other processes map, and theirs that this one maps: pools as file descriptors, and blocks of
// them by name. docs/decisions/devices_between_processes.md has the figures and the rules.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>

#include "../../base/unique_fd.hpp"
#include "cuda_runtime.hpp"

namespace ferry::inline v0::detail {

/// What other processes are told of a pool, beside its descriptor.
struct pool_description {
  std::int32_t device = 0;  ///< the exporting process's number of it
  cuda_uuid gpu{};
  std::array<std::byte, 16> nonce{};  ///< random; also what the anchor contains
  /// A block that is kept as long as the process lives. Who maps it and finds the nonce there can map the others, too, and
  /// maps them faster while this one is mapped.
  cuda_block_name anchor{};
};

struct exported_pool {
  pool_description description;
  unique_fd descriptor;
};

/// Whether a device is in use whose pool can be exported: what costs nothing to ask.
[[nodiscard]] bool has_exportable_cuda_pools();
/// The pools of the devices in use, exported now or before; kept until the process ends. A pool that cannot be exported is left
/// out, with a line in the log. Waits the first time, for a stream that does nothing else.
[[nodiscard]] std::vector<const exported_pool*> exported_cuda_pools();

/// A block of this process by its name in others; none if it is of no exported pool.
[[nodiscard]] std::optional<cuda_block_name> name_cuda_block(device where, void* block) noexcept;

/// A pool of another process. Thread-safe.
class imported_pool {
 public:
  /// Maps the pool, and proves that it can be read by reading the anchor; the same one for the same pool, as long as one exists.
  /// Makes no context: the devices in use read it, be it their own memory or a peer's. Waits for streams that do nothing else.
  /// Throws errc::device_failure, errc::bad_device: this process does not see that GPU, or uses no device that reads its memory.
  static std::shared_ptr<imported_pool> open(const pool_description& description, const unique_fd& descriptor);

  /// For open().
  imported_pool(device where, const pool_description& description, const unique_fd& descriptor);
  ~imported_pool();
  imported_pool(const imported_pool&) = delete;
  imported_pool& operator=(const imported_pool&) = delete;

  /// Whether a device of this process can read the pool.
  [[nodiscard]] bool readable_from(device by) const noexcept { return (readers_ & bit(by)) != 0; }
  [[nodiscard]] std::uint64_t readers() const noexcept { return readers_; }

  /// Maps a block, and checks that `bytes` bytes from `offset` on are within. Once for each block at a time: it is unmapped when
  /// as many unmap() have been called. Throws errc::device_failure, errc::malformed.
  const std::byte* map(const cuda_block_name& block, std::uint64_t offset, std::uint64_t bytes);
  /// A reading device's work with the block ends with `read`, a mark in its stream; none if nothing was queued. Unmaps the block
  /// behind it if no other map() of it is left: on the stream that is returned, and the exporting process must not free the block
  /// before that has been done. Throws errc::device_failure; then the block is not mapped any more.
  std::optional<stream> unmap(const cuda_block_name& block, const std::optional<event>& read);

 private:
  struct mapping {
    cuda_block_name name;
    std::byte* memory;
    std::size_t users;
    std::optional<event> closing;  // marks the unmapping
    bool lost = false;             // it could not be unmapped
  };
  static constexpr std::uint64_t bit(device of) noexcept {
    return of.is_cuda() && of.index < 64 ? std::uint64_t{1} << static_cast<unsigned>(of.index) : 0;
  }
  void admit_readers();
  void prove(const pool_description& description);
  void read_anchor(const pool_description& description);
  void let_go() noexcept;
  [[nodiscard]] std::byte* map_memory(const cuda_block_name& name);
  stream close(mapping& one);

  const device where_;  // the GPU, as this process numbers it; it need not use it
  device reader_;       // of the readers
  CUmemPoolHandle_st* pool_ = nullptr;
  std::byte* anchor_ = nullptr;
  std::uint64_t readers_ = 0;
  std::mutex mutex_;
  std::vector<mapping> mappings_;  // few at a time
};

}  // namespace ferry::inline v0::detail
