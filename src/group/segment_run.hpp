#pragma once

// One collective at one member, in the shared segment of the group. A piece passes through two or three stages: each member
// copies in what it contributes; of large reductions each reduces a share; each copies out, or reduces, what it gets.
// Reductions are made in the order of ranks.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ferry/group/plan.hpp>
#include <ferry/tensor/dtype.hpp>

#include "group_segment.hpp"

namespace ferry::inline v0::detail {

/// Reductions of at most that many bytes of all members together take one phase: each member reduces everything itself.
inline constexpr std::size_t most_bytes_of_one_phase = std::size_t{128} << 10U;
[[nodiscard]] constexpr bool takes_two_phases(collective op, std::size_t bytes, int members) noexcept {
  return op == collective::all_reduce && bytes > most_bytes_of_one_phase / static_cast<std::size_t>(members);
}
/// Whether there is a way through the segment for it.
[[nodiscard]] constexpr bool runs_in_segment(collective op) noexcept {
  return op != collective::send && op != collective::receive;
}

struct segment_job {
  collective op = collective::barrier;
  reduce_op how = {};
  dtype type = dtype::u8;
  int root = -1;
  const std::byte* from = nullptr;  ///< what this member contributes
  std::byte* to = nullptr;          ///< may be `from` for broadcast, all_reduce and reduce
  std::int64_t elements = 0;        ///< of reduce_scatter and all_to_all: of a share
};

/// Not thread-safe.
class segment_run {
 public:
  enum class state : std::uint8_t {
    blocked,
    finished,
    apart,    ///< another member is at another collective: one of the two made, or makes, the earlier one by messages
    differs,  ///< another member calls something else
    broken,   ///< another member has written what no member writes
  };

  /// `base` and `turn`: the pieces and collectives that were in the segment before.
  segment_run(const group_segment& memory, int rank, const segment_job& job, const signature_block& own,
              std::uint64_t base, std::uint64_t turn);

  /// Goes on as far as it can. `wake` is called for members that sleep.
  state advance(const std::function<void(int)>& wake);
  /// Whether it could go on now. To be asked after announce_sleep().
  [[nodiscard]] bool could_advance() const noexcept;
  /// Whether all members have come to it. Before that it has not written anything but the segment.
  [[nodiscard]] bool all_have_come() const noexcept { return least_in_ > base_; }
  /// Whether it still waits for that member.
  [[nodiscard]] bool needs(int member) const noexcept;
  [[nodiscard]] bool has_come(int member) const noexcept;
  [[nodiscard]] std::uint64_t pieces() const noexcept { return end_ - base_; }
  /// Which member, and what it calls, where that can be read.
  [[nodiscard]] int culprit() const noexcept { return culprit_; }
  [[nodiscard]] const std::optional<collective_signature>& theirs() const noexcept { return theirs_; }

 private:
  struct range {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  [[nodiscard]] range piece(std::uint64_t number) const noexcept;
  [[nodiscard]] range share(const range& of, int member) const noexcept;
  [[nodiscard]] std::size_t bytes(std::int64_t elements) const noexcept {
    return static_cast<std::size_t>(elements) * element_;
  }
  /// At another member, which tells the others.
  [[nodiscard]] bool has_failed() const noexcept;
  /// Reads the numbers of the others. False: differs or broken.
  bool observe(state& found);
  /// `found`: how it differs.
  bool check_signature(int member, state& found);
  void publish(std::uint64_t member_flags::*which, std::uint64_t value, const std::function<void(int)>& wake);
  void copy_in(std::uint64_t number);
  void reduce_share(std::uint64_t number);
  void copy_out(std::uint64_t number);
  /// `into` and the sources do not overlap.
  template <class Source>
  void reduce_all(std::byte* into, const Source& of, std::int64_t count);

  const group_segment& memory_;
  const int rank_;
  const int n_;
  const segment_job job_;
  const signature_block own_;
  const std::size_t element_;
  const bool two_phases_;
  const std::uint64_t base_;
  const std::uint64_t turn_;
  std::uint64_t end_ = 0;
  std::int64_t each_ = 0;    // elements of a piece
  std::size_t spacing_ = 0;  // of the shares in a slot, in bytes
  std::uint64_t next_in_;
  std::uint64_t next_done_;
  std::uint64_t next_out_;
  std::uint64_t least_in_;
  std::uint64_t least_done_;
  std::uint64_t least_out_;
  std::vector<bool> checked_;
  int culprit_ = -1;
  std::optional<collective_signature> theirs_;
};

}  // namespace ferry::inline v0::detail
