#pragma once

// The host memory of this process that others of the machine read in place: one sealed memfd, of which only pages that were used
// exist, so that one descriptor hands over all blocks that there are or will be.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>

#include "../../base/unique_fd.hpp"

namespace ferry::inline v0::detail {

/// Blocks begin on such a boundary and are multiples of it: no page is part of two.
inline constexpr std::size_t shared_granule = std::size_t{64} << 10U;

[[nodiscard]] constexpr std::size_t in_granules(std::size_t bytes) noexcept {
  return (bytes + shared_granule - 1) / shared_granule * shared_granule;
}

/// The most address space that such memory may have.
inline constexpr std::size_t most_shared_bytes = std::size_t{1} << 40U;

/// Blocks of it. Thread-safe.
class shared_arena {
 public:
  /// The process's, made when first asked for and never destroyed, since tensors may outlive every static object. Null where memory
  /// cannot be shared, as `FERRY_SHARED_MEMORY=0` says, for one; obstacle() then says why.
  [[nodiscard]] static shared_arena* of_process() noexcept;
  /// A literal; empty where of_process() is not null.
  [[nodiscard]] static std::string_view obstacle() noexcept;
  /// Whether any block of it was ever allocated. Cheap.
  [[nodiscard]] static bool in_use() noexcept;
  /// Whether any tensor was ever made in it, which is to be said. Cheap.
  [[nodiscard]] static bool has_tensors() noexcept;
  static void note_tensor() noexcept;
  /// Where `at` lies within the memory; none if it does not. Cheap.
  [[nodiscard]] static std::optional<std::uint64_t> offset_of(const void* at) noexcept;

  /// Of `bytes` of address space. Throws errc::system_failure.
  explicit shared_arena(std::size_t bytes);
  ~shared_arena();
  shared_arena(const shared_arena&) = delete;
  shared_arena& operator=(const shared_arena&) = delete;

  enum class room : std::uint8_t { as_it_is, made };
  /// Uninitialised bytes on a page boundary, whose pages exist; null if there is no room, for which free memory is given back to the
  /// system if it is to be made, or no memory.
  [[nodiscard]] void* allocate(std::size_t bytes, room wanted = room::made) noexcept;
  /// What allocate(bytes) returned. Kept for reuse, up to the limit of cpu_pool_set_limit(), else given back to the system.
  void deallocate(void* memory, std::size_t bytes) noexcept;
  /// Gives free memory back to the system.
  void trim() noexcept;

  /// For the other process: sealed against changes of its size.
  [[nodiscard]] int descriptor() const noexcept { return file_.get(); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

  struct figures {
    std::uint64_t blocks = 0;
    std::uint64_t used_bytes = 0;    ///< in these
    std::uint64_t cached_bytes = 0;  ///< free, with pages of the system
  };
  [[nodiscard]] figures now() const noexcept;

 private:
  // Free blocks, by offset: neighbours are one. Those with pages are apart from those without.
  using free_blocks = std::map<std::size_t, std::size_t>;
  static std::optional<std::size_t> take(free_blocks& from, std::size_t size);
  static void put(free_blocks& to, std::size_t offset, std::size_t size);
  [[nodiscard]] bool populate(std::size_t offset, std::size_t size) const noexcept;
  void drop_pages(std::size_t offset, std::size_t size) const noexcept;
  void forget(std::size_t offset, std::size_t size) noexcept;
  void trim_locked() noexcept;

  unique_fd file_;
  std::span<std::byte> bytes_;
  mutable std::mutex mutex_;  // guards the rest
  free_blocks warm_;
  free_blocks cold_;
  figures now_;
};

}  // namespace ferry::inline v0::detail
