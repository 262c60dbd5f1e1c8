#pragma once

#include <cstddef>

// The sanitizers bring operators new and delete of their own, which check more than ours.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  #define FERRY_TEST_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
  #if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    #define FERRY_TEST_COUNTS_ALLOCATIONS 0
  #endif
#endif
#ifndef FERRY_TEST_COUNTS_ALLOCATIONS
  #define FERRY_TEST_COUNTS_ALLOCATIONS 1
#endif

namespace ferry_test {
/// Whether allocations are counted in this build.
inline constexpr bool counts_allocations = FERRY_TEST_COUNTS_ALLOCATIONS != 0;
/// How often this thread has called operator new so far. Needs allocation_count.cpp in the test binary.
std::size_t allocations_of_this_thread() noexcept;
/// Has the `which`-th allocation of this thread from now on fail, counted from 1, and no other.
void fail_allocation(std::size_t which) noexcept;
/// Whether it has come to that; if not, it will not any more.
bool allocation_failed() noexcept;
}  // namespace ferry_test
