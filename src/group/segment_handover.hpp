#pragma once

// How the first member of a group hands its segment to the others: over a unix socket under a name that cannot be guessed, to
// processes of the same user that show what they were told in the group's own messages.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ferry/base/time.hpp>

#include "../base/unique_fd.hpp"
#include "group_segment.hpp"

namespace ferry::inline v0::detail {

/// The first member's end.
class segment_offer {
 public:
  /// Throws errc::system_failure.
  explicit segment_offer(const segment_layout& layout);

  /// For the others.
  [[nodiscard]] std::string where() const;
  [[nodiscard]] std::string token() const;
  [[nodiscard]] const std::shared_ptr<group_segment>& memory() const noexcept { return memory_; }
  /// Hands it to that many members. Throws errc::handshake_failed if they have not come by the deadline.
  void hand_over(int members, deadline until);

 private:
  std::shared_ptr<group_segment> memory_;
  unique_fd descriptor_;
  unique_fd listener_;
  std::array<std::uint64_t, 2> token_{};
};

/// The other members'. Throws errc::handshake_failed, errc::system_failure.
std::shared_ptr<group_segment> fetch_segment(const segment_layout& layout, const std::string& where,
                                             const std::string& token, deadline until);

}  // namespace ferry::inline v0::detail
