#pragma once

#include <cstddef>

namespace ferry_test {
/// How often this thread has called operator new so far. Needs allocation_count.cpp in the test binary.
std::size_t allocations_of_this_thread() noexcept;
}  // namespace ferry_test
