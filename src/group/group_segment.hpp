#pragma once

// The memory that the members of a group share: for each of them flags, what it calls, and slots for pieces.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "../base/unique_fd.hpp"
#include "../transport/shm/shared_rings.hpp"
#include "group_messages.hpp"
#include "segment_flags.hpp"

namespace ferry::inline v0::detail {

/// Where things are. The same on every member, for the same members and bytes.
struct segment_layout {
  static constexpr std::uint64_t slots = 4;
  static constexpr std::size_t control_bytes = 4096;  ///< of a member
  static constexpr std::size_t least_slot = 1024;
  static constexpr int most_members = 64;

  int members = 0;
  std::size_t slot_bytes = 0;    ///< of a piece, as one member has it
  std::size_t result_bytes = 0;  ///< of a member's share of a piece
  std::size_t region_bytes = 0;  ///< of a member

  /// With regions of at most that many bytes. Empty: that is too little, or the members are too many.
  static std::optional<segment_layout> make(int members, std::size_t bytes_per_member) noexcept;
  [[nodiscard]] std::size_t total() const noexcept {
    return static_cast<std::size_t>(members) * (control_bytes + region_bytes);
  }
};

/// A signature as bytes of one length, so that members compare without a format that they must trust.
struct signature_block {
  std::array<std::uint64_t, 40> words{};

  static signature_block encode(std::uint64_t sequence, const collective_signature& signature) noexcept;
  /// Empty: it is none.
  [[nodiscard]] std::optional<std::pair<std::uint64_t, collective_signature>> decode() const;
  friend bool operator==(const signature_block&, const signature_block&) = default;
};

/// Every member may write anything anywhere in it at any time: nothing that is read from it says where to read or write.
class group_segment {
 public:
  /// Fresh, sealed against changes of its size, and its descriptor for the other members. Throws errc::system_failure.
  static std::pair<std::shared_ptr<group_segment>, unique_fd> create(const segment_layout& layout);
  /// That of another member. Throws errc::handshake_failed unless it is memory of exactly that size, which cannot change.
  static std::shared_ptr<group_segment> adopt(const unique_fd& descriptor, const segment_layout& layout);

  explicit group_segment(const segment_layout& layout, std::shared_ptr<shared_segment> memory);
  /// Over memory that all members, threads of this process, see at the same address; zeros.
  group_segment(const segment_layout& layout, std::span<std::byte> memory) : layout_(layout), bytes_(memory) {}

  [[nodiscard]] const segment_layout& layout() const noexcept { return layout_; }
  [[nodiscard]] int members() const noexcept { return layout_.members; }
  [[nodiscard]] member_flags& flags(int member) const noexcept {
    return *reinterpret_cast<member_flags*>(control(member));
  }
  /// Of its collective of that number among those in the segment.
  [[nodiscard]] signature_block& signature(int member, std::uint64_t turn) const noexcept {
    return *reinterpret_cast<signature_block*>(control(member) + first_signature + turn % 2 * signature_room);
  }
  [[nodiscard]] std::byte* slot(int member, std::uint64_t piece) const noexcept {
    return region(member) + piece % segment_layout::slots * layout_.slot_bytes;
  }
  /// Where that member puts its share of the reduced piece.
  [[nodiscard]] std::byte* result(int member, std::uint64_t piece) const noexcept {
    return region(member) + segment_layout::slots * layout_.slot_bytes +
           piece % segment_layout::slots * layout_.result_bytes;
  }

  // What the thread sanitizer cannot see: members in one process have the memory at different addresses.
  void note_published() const noexcept;
  void note_observed() const noexcept;

 private:
  static constexpr std::size_t first_signature = 1024;
  static constexpr std::size_t signature_room = 512;
  static_assert(sizeof(member_flags) <= first_signature && sizeof(signature_block) <= signature_room);
  static_assert(first_signature + 2 * signature_room <= segment_layout::control_bytes);

  [[nodiscard]] std::byte* control(int member) const noexcept {
    return bytes_.data() + static_cast<std::size_t>(member) * segment_layout::control_bytes;
  }
  [[nodiscard]] std::byte* region(int member) const noexcept {
    return bytes_.data() + static_cast<std::size_t>(layout_.members) * segment_layout::control_bytes +
           static_cast<std::size_t>(member) * layout_.region_bytes;
  }

  const segment_layout layout_;
  std::shared_ptr<shared_segment> memory_;
  std::span<std::byte> bytes_;
};

}  // namespace ferry::inline v0::detail
