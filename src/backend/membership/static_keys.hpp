#pragma once

// What the workers of a static group read and write in its store; static_group.cpp lists the keys.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/base/time.hpp>

#include "../links/peers.hpp"

namespace ferry::inline v0::detail {

/// `prefix` and the rank.
[[nodiscard]] std::string rank_key(std::string_view prefix, int rank);
/// The parts of a value.
[[nodiscard]] std::vector<std::string> split_text(const std::string& text, char separator);
/// A number that was read as `what`. Throws errc::malformed.
[[nodiscard]] std::uint64_t stored_number(std::string_view text, std::string_view what);

/// Appends the records of a `workers/<k>` key, whose ids follow those in `records`. Throws errc::malformed.
void append_records(std::vector<worker_record>& records, std::string_view together);

/// Splits a long wait in the store, to check from time to time whether the awaited key can still appear.
class growing_wait {
 public:
  explicit growing_wait(deadline until) : until_(until) {}
  /// The next slice: doubles, up to a second, since a group may wait for a slow member for hours.
  deadline next() {
    const auto length =
        std::exchange(length_, std::min<std::chrono::nanoseconds>(2 * length_, std::chrono::seconds(1)));
    const auto now = clock::now();
    slice_ = std::min(deadline(now + length), std::max(until_, deadline(now + std::chrono::milliseconds(1))));
    return slice_;
  }
  /// Whether a request failed because its time was over, with time left for another one. A store that has to connect again,
  /// to a server without a processor, may say that it could not.
  [[nodiscard]] bool is_over(const error& failed, deadline of_request) const noexcept {
    return failed.kind() == errc::store_timeout ||
           (failed.kind() == errc::store_unreachable && of_request.expired() && !until_.expired());
  }
  /// The same of a request that had the last slice.
  [[nodiscard]] bool is_over(const error& failed) const noexcept { return is_over(failed, slice_); }

 private:
  const deadline until_;
  deadline slice_;
  std::chrono::nanoseconds length_ = std::chrono::milliseconds(100);
};

}  // namespace ferry::inline v0::detail
