#include "allocation_count.hpp"

#include <cstdlib>
#include <new>
#include <utility>

namespace {
thread_local std::size_t count = 0;
thread_local std::size_t to_fail = 0;  // 0: none

#if !FERRY_TEST_ADDRESS_SANITIZER && !FERRY_TEST_THREAD_SANITIZER
void note() {
  ++count;
  if (to_fail != 0 && --to_fail == 0) throw std::bad_alloc();
}
void* counted(std::size_t size) {
  note();
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
void* counted(std::size_t size, std::align_val_t alignment) {
  note();
  const auto align = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (size + align - 1) / align * align)) return memory;
  throw std::bad_alloc();
}
#endif
}  // namespace

std::size_t ferry_test::allocations_of_this_thread() noexcept { return count; }
void ferry_test::fail_allocation(std::size_t which) noexcept { to_fail = which; }
bool ferry_test::allocation_failed() noexcept { return std::exchange(to_fail, 0) == 0; }

#if !FERRY_TEST_ADDRESS_SANITIZER && !FERRY_TEST_THREAD_SANITIZER
void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void* operator new(std::size_t size, std::align_val_t alignment) { return counted(size, alignment); }
void* operator new[](std::size_t size, std::align_val_t alignment) { return counted(size, alignment); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#endif
