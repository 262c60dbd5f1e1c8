#pragma once

// Counts the allocations of this process, whoever makes them: the C++ library, ferry, or malloc's direct callers.

#include <cstdint>

namespace ferry_bench {

/// Whether this build can count: not under sanitizers, which have an allocator of their own, nor without glibc.
bool can_count_allocations() noexcept;
/// While on, every malloc, calloc, aligned allocation and realloc of any thread is counted. Off by default: it costs.
void count_allocations(bool on) noexcept;
/// Counted so far.
std::uint64_t allocations() noexcept;

}  // namespace ferry_bench
