#include "allocations.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

// operator new of the C++ library calls malloc, so malloc is the only thing to replace.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
  #define FERRY_BENCH_COUNTS 0
#elif defined(__has_feature)
  #if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    #define FERRY_BENCH_COUNTS 0
  #endif
#endif
#ifndef FERRY_BENCH_COUNTS
  #define FERRY_BENCH_COUNTS 1
#endif

namespace {
std::atomic<bool> counting{false};
std::atomic<std::uint64_t> counted{0};

#if FERRY_BENCH_COUNTS
void count() noexcept {
  if (counting.load(std::memory_order_relaxed)) counted.fetch_add(1, std::memory_order_relaxed);
}
#endif
}  // namespace

namespace ferry_bench {
bool can_count_allocations() noexcept { return FERRY_BENCH_COUNTS != 0; }
void count_allocations(bool on) noexcept { counting.store(on); }
std::uint64_t allocations() noexcept { return counted.load(); }
}  // namespace ferry_bench

#if FERRY_BENCH_COUNTS
// glibc keeps its own allocator under these names for exactly this use.
extern "C" {
void* __libc_malloc(std::size_t size);                           // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(std::size_t count, std::size_t size);        // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* memory, std::size_t size);            // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(std::size_t alignment, std::size_t size);  // NOLINT(bugprone-reserved-identifier)

void* malloc(std::size_t size) {
  count();
  return __libc_malloc(size);
}
void* calloc(std::size_t number, std::size_t size) {
  count();
  return __libc_calloc(number, size);
}
void* realloc(void* memory, std::size_t size) {
  count();
  return __libc_realloc(memory, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  count();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** result, std::size_t alignment, std::size_t size) {
  count();
  void* const memory = __libc_memalign(alignment, size);
  if (!memory) return ENOMEM;
  *result = memory;
  return 0;
}
}
#endif
