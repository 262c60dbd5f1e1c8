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

/// Bytes that are lent are as the other process has them, until this one writes to a page: that is copied then, and seen by this process
/// alone. Bytes that are handed over belong to this process until it ends their use: it writes to the very same pages. Thread-safe, for
/// ranges that do not share pages.
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
    return offset <= lent_.all.size() && bytes <= lent_.all.size() - offset;
  }
  /// Whether the other process may hand memory over: its descriptor lets this one write to it.
  [[nodiscard]] bool takes_over() const noexcept { return !handed_over_.all.empty(); }
  enum class given : std::uint8_t { lent, handed_over };
  enum class refusal : std::uint8_t { none, overlaps, not_mapped };
  struct use {
    std::byte* first = nullptr;  ///< null: refused
    refusal why = refusal::none;
  };
  /// These bytes, of which has() is true and there is at least one, as the other process has them; for given::handed_over, takes_over()
  /// is true. Refused: others that share pages with them are in use; or this process cannot have them, and the memory is of no use any
  /// more. Throws std::bad_alloc.
  [[nodiscard]] use begin_use(std::uint64_t offset, std::uint64_t bytes, given how = given::lent);
  /// Nothing uses them any more: what this process wrote to bytes that were lent is forgotten before they are used again.
  void end_use(std::uint64_t offset, std::uint64_t bytes) noexcept;

 private:
  using pages = std::span<std::byte>;
  // The memory, mapped in one of the two ways.
  struct mapping {
    pages all;
    // A bit for each granule that was made accessible, and whose pages were looked up. Mapped, so that only those words exist that
    // were used.
    std::span<std::uint64_t> ready;
    [[nodiscard]] bool are_ready(pages which) const noexcept;
    void note_ready(pages which) const noexcept;
    template <class Visit>
    void for_words_of(pages which, const Visit& visit) const noexcept;
    void unmap() const noexcept;
  };
  enum class stage : std::uint8_t { in_use, ended, being_looked_at };
  // In bytes of the memory, and of whole pages.
  struct used_pages {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    given how = given::lent;
    stage now = stage::in_use;
  };
  using used_list = std::list<used_pages>;
  static mapping map(int descriptor, std::size_t size, given how) noexcept;
  [[nodiscard]] const mapping& mapped(given how) const noexcept { return how == given::lent ? lent_ : handed_over_; }
  [[nodiscard]] pages pages_of(const used_pages& which) const noexcept {
    return mapped(which.how).all.subspan(which.first, which.last - which.first);
  }
  [[nodiscard]] used_pages range_of(std::uint64_t offset, std::uint64_t bytes, given how) const noexcept;
  [[nodiscard]] used_list::iterator find(std::uint64_t first);
  [[nodiscard]] bool accessible(const used_pages& wanted) noexcept;
  void forget_writes(pages which) noexcept;
  void forget_writes_to(used_list::iterator each, std::unique_lock<std::mutex>& lock) noexcept;
  template <class Work>
  bool do_later(Work work) noexcept;

  mapping lent_;
  mapping handed_over_;              // empty: only lent memory is taken
  std::atomic<bool> broken_{false};  // writes of this process could not be forgotten
  std::mutex mutex_;                 // guards the list
  std::condition_variable forgotten_;
  used_list used_;  // now, or before and not looked at yet: few
};

}  // namespace ferry::inline v0::detail
