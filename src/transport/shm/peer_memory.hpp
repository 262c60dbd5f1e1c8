#pragma once

// The host memory of another process, mapped to be read in place.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>

#include "../../base/unique_fd.hpp"

namespace ferry::inline v0::detail {

/// The memory as the other process has it, until this one writes to a page: that is copied then, and seen by this process alone.
/// Thread-safe, for ranges that do not share pages.
class peer_memory : public std::enable_shared_from_this<peer_memory> {
 public:
  /// What the kernel is asked of each page takes time: of longer ranges it is asked on the control thread.
  static constexpr std::size_t looked_at_once = std::size_t{1} << 20U;

  /// What the descriptor is of. Throws errc::handshake_failed unless it is memory whose size cannot change, so that no access to it can
  /// fail whatever the peer does, and errc::system_failure if it cannot be mapped.
  explicit peer_memory(const unique_fd& descriptor);
  ~peer_memory();
  peer_memory(const peer_memory&) = delete;
  peer_memory& operator=(const peer_memory&) = delete;

  /// Whether there are so many bytes at `offset`.
  [[nodiscard]] bool has(std::uint64_t offset, std::uint64_t bytes) const noexcept {
    return offset <= bytes_.size() && bytes <= bytes_.size() - offset;
  }
  enum class refusal : std::uint8_t { none, overlaps, not_mapped };
  struct use {
    std::byte* first = nullptr;  ///< null: refused
    refusal why = refusal::none;
  };
  /// These bytes, of which has() is true and there is at least one, as the other process has them. Refused: others that share pages
  /// with them are in use; or this process cannot have them, and the memory is of no use any more. Throws std::bad_alloc.
  [[nodiscard]] use begin_use(std::uint64_t offset, std::uint64_t bytes);
  /// Nothing uses them any more: what this process wrote there is forgotten before they are used again.
  void end_use(std::uint64_t offset, std::uint64_t bytes) noexcept;

 private:
  using pages = std::span<std::byte>;
  enum class stage : std::uint8_t { in_use, ended, being_looked_at };
  struct used_pages {
    pages which;
    stage now = stage::in_use;
  };
  using used_list = std::list<used_pages>;
  void unmap() noexcept;
  [[nodiscard]] pages pages_of(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  [[nodiscard]] bool note_present(pages which, bool present) noexcept;
  void map_ahead(pages which) noexcept;
  void forget_writes(pages which) noexcept;
  void forget_writes_to(used_list::iterator each, std::unique_lock<std::mutex>& lock) noexcept;
  template <class Work>
  bool do_later(Work work) noexcept;

  pages bytes_;
  // A bit for each granule whose pages are in this process's page table, as far as is known: only the speed depends on it.
  // Mapped, so that only those exist that were used.
  std::span<std::uint64_t> present_;
  std::atomic<bool> broken_{false};  // writes of this process could not be forgotten
  std::mutex mutex_;                 // guards the list
  std::condition_variable forgotten_;
  used_list used_;  // now, or before and not looked at yet: few
};

}  // namespace ferry::inline v0::detail
