#pragma once

#include <cstddef>

#include "sanitizers.hpp"

namespace ferry_test {
/// Whether allocations are counted in this build: the sanitizers bring operators new and delete of their own.
inline constexpr bool counts_allocations = !sanitized;
/// How often this thread has called operator new so far. Needs allocation_count.cpp in the test binary.
std::size_t allocations_of_this_thread() noexcept;
/// Has the `which`-th allocation of this thread from now on fail, counted from 1, and no other.
void fail_allocation(std::size_t which) noexcept;
/// Whether it has come to that; if not, it will not any more.
bool allocation_failed() noexcept;
}  // namespace ferry_test
