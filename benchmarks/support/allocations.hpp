#pragma once

// Counts the allocations of this process by any caller: the C++ library, ferry, or direct users of malloc.

#include <cstdint>

namespace ferry_bench {

/// Whether this build can count: not under sanitizers, which have their own allocator, nor without glibc.
bool can_count_allocations() noexcept;
/// While on, every malloc, calloc, aligned allocation and realloc of any thread is counted. Off by default: it has a
/// cost.
void count_allocations(bool on) noexcept;
/// Counted so far.
std::uint64_t allocations() noexcept;

}  // namespace ferry_bench
