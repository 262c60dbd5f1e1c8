#pragma once

// How the members of a group order what they read and write in their shared segment: numbers that only grow, one writer
// each, and a flag for a member that sleeps. tests/group/segment_flags_model_test.cpp explores every execution of it that
// the memory model allows.
//
// A number is published after the bytes that it counts were written, or read; a member that observes it reads, or writes, those
// bytes after it. A member that sleeps announces that, and then looks at the numbers once more; one that publishes a number
// looks at the flags of the others afterwards. Both are sequentially consistent, so that one of the two sees the other.

#include <atomic>
#include <cstdint>

namespace ferry::inline v0::detail {

struct flag_orders {
  std::memory_order publish = std::memory_order_seq_cst;
  std::memory_order observe = std::memory_order_acquire;
  std::memory_order announce = std::memory_order_seq_cst;    ///< by the member that is about to sleep
  std::memory_order look_again = std::memory_order_seq_cst;  ///< at the numbers, after it has announced
  std::memory_order look_for_sleepers = std::memory_order_seq_cst;
};
inline constexpr flag_orders segment_orders{};

/// What one member says to the others. Others write `sleeps` alone, to take it.
struct member_flags {
  alignas(128) std::uint64_t in = 0;    ///< pieces that it has contributed to
  alignas(128) std::uint64_t done = 0;  ///< pieces of which it has reduced its share
  alignas(128) std::uint64_t out = 0;   ///< pieces that it reads nothing of any more
  /// 0, or one more than the first collective that it does not make in the segment. It only falls.
  alignas(128) std::uint64_t left = 0;
  /// 0, or one more than the first that has failed at this member: those that have not completed it wait for the error.
  std::uint64_t failed = 0;
  /// 0, or one more than the last that this member alone may make by messages, its tensor being on a device; those before it that
  /// are made in the segment are complete here.
  std::uint64_t skipped = 0;
  alignas(128) std::uint32_t sleeps = 0;
};
static_assert(sizeof(member_flags) == 640);

using shared_number = std::atomic_ref<std::uint64_t>;
using shared_sleep = std::atomic_ref<std::uint32_t>;
static_assert(shared_number::is_always_lock_free && shared_sleep::is_always_lock_free);

inline void publish_number(std::uint64_t& word, std::uint64_t value) noexcept {
  shared_number(word).store(value, segment_orders.publish);
}
inline std::uint64_t observe_number(std::uint64_t& word) noexcept {
  return shared_number(word).load(segment_orders.observe);
}
inline std::uint64_t look_again_at(std::uint64_t& word) noexcept {
  return shared_number(word).load(segment_orders.look_again);
}
inline void announce_sleep(member_flags& own) noexcept { shared_sleep(own.sleeps).store(1, segment_orders.announce); }
inline void withdraw_sleep(member_flags& own) noexcept {
  const shared_sleep flag(own.sleeps);
  if (flag.load(std::memory_order_relaxed) != 0) flag.store(0, std::memory_order_relaxed);
}
/// After a number was published: whether that member must be woken, by this one.
inline bool take_sleep(member_flags& other) noexcept {
  const shared_sleep flag(other.sleeps);
  return flag.load(segment_orders.look_for_sleepers) != 0 && flag.exchange(0) != 0;
}

}  // namespace ferry::inline v0::detail
