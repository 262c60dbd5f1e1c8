#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <ferry/base/time.hpp>
#include <ferry/rpc/detail/method_entry.hpp>
#include <ferry/wire/frame.hpp>

namespace ferry::inline v0::detail {

/// The header of a request made at `began`. One-way requests have no limit: no caller waits for them.
inline frame_header request_header(const method_entry& method, deadline until, clock::time_point began,
                                   bool one_way = false) noexcept {
  frame_header header;
  header.kind = frame_kind::request;
  header.method = method.id;
  header.signature = method.signature;
  if (one_way) header.flags |= frame_one_way;
  if (until.is_never() || one_way) {
    header.flags |= frame_no_deadline;
  } else {
    header.timeout_us = static_cast<std::uint64_t>(std::max<std::int64_t>(
        1, std::chrono::duration_cast<std::chrono::microseconds>(until.remaining(began)).count()));
  }
  return header;
}

}  // namespace ferry::inline v0::detail
