#pragma once

// Sleeping on a 32-bit word (Linux futex), private to the process. A word costs four bytes, and a system call only when
// a thread really sleeps; a condition variable per future or call would cost more.

#include <atomic>
#include <cstdint>

#include <ferry/base/time.hpp>

namespace ferry::inline v0::detail {

/// Sleeps while `word` holds `expected`, at most until `until`. Returns false when the deadline has passed, true
/// otherwise: woken, the word differed, or spuriously; check the word again.
bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, deadline until) noexcept;

/// Wakes one or all threads that sleep on `word`. The word need not exist any more: a waiter that saw the change may
/// already have freed it, and at worst another sleeper at that address wakes spuriously.
void futex_wake_one(const std::atomic<std::uint32_t>& word) noexcept;
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace ferry::inline v0::detail
