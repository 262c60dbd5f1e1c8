#include <ferry/device/cpu_pool.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#if defined(__SANITIZE_ADDRESS__)
  #define FERRY_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
  #if __has_feature(address_sanitizer)
    #define FERRY_ADDRESS_SANITIZER 1
  #endif
#endif
#ifdef FERRY_ADDRESS_SANITIZER
  #include <sanitizer/asan_interface.h>
#endif

namespace ferry::inline v0 {
namespace detail {
namespace {

// Sizes: multiples of 64 up to 512, then four steps per doubling, so a block is at most a quarter larger than
// requested.
constexpr std::size_t class_of(std::size_t bytes) {
  if (bytes <= 512) return (bytes - 1) / 64;
  const auto log = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 1;
  return 8 + (log - 9) * 4 + (((bytes - 1) >> (log - 2)) - 4);
}
constexpr std::size_t size_of_class(std::size_t index) {
  if (index < 8) return (index + 1) * 64;
  return (5 + (index - 8) % 4) << ((index - 8) / 4 + 7);
}
static_assert(size_of_class(class_of(1)) == 64 && size_of_class(class_of(512)) == 512);
static_assert(size_of_class(class_of(513)) == 640 && size_of_class(class_of(640)) == 640);
static_assert(size_of_class(class_of(1024)) == 1024 && size_of_class(class_of(1025)) == 1280);

constexpr std::size_t largest_thread_block = std::size_t{32} << 10;  // cached by threads
constexpr std::size_t largest_heap_block = std::size_t{1} << 20;     // from malloc; larger ones are mapped
constexpr std::size_t largest_block = std::size_t{1} << 47;          // more than a process can address
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t thread_classes = class_of(largest_thread_block) + 1;
constexpr std::size_t heap_classes = class_of(largest_heap_block) + 1;
constexpr std::size_t all_classes = class_of(largest_block) + 1;

// Stored at the start of a free block.
struct free_block {
  free_block* next;  // in the list of its class
  // Mapped blocks only:
  free_block* previous;
  free_block* newer;  // in the order in which they were freed
  free_block* older;
  std::size_t index;
};
static_assert(sizeof(free_block) <= 64);

// To the address sanitizer a cached block is freed, and a block in use has exactly the requested size.
#ifdef FERRY_ADDRESS_SANITIZER
void hide([[maybe_unused]] void* block, std::size_t size) {
  __asan_poison_memory_region(static_cast<std::byte*>(block) + sizeof(free_block), size - sizeof(free_block));
}
void show(void* block, std::size_t size, std::size_t used) {
  __asan_unpoison_memory_region(block, size);
  __asan_poison_memory_region(static_cast<std::byte*>(block) + used, size - used);
}
#else
void hide(void*, std::size_t) {}
void show(void*, std::size_t, std::size_t) {}
#endif

std::atomic<std::uint64_t> reserved_bytes{0};
std::atomic<std::uint64_t> system_allocations{0};

void* system_allocate(std::size_t index) noexcept {
  const std::size_t size = size_of_class(index);
  void* memory = nullptr;
  if (index < heap_classes) {
    memory = std::aligned_alloc(cpu_alignment, size);
    if (!memory) return nullptr;
  } else {
    const std::size_t slack = size >= huge_page ? huge_page : 0;
    memory = ::mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    if (slack != 0) {
      const std::size_t lead = (huge_page - reinterpret_cast<std::uintptr_t>(memory) % huge_page) % huge_page;
      auto* start = static_cast<std::byte*>(memory);
      if (lead != 0) ::munmap(start, lead);
      ::munmap(start + lead + size, slack - lead);
      memory = start + lead;
      ::madvise(memory, size, MADV_HUGEPAGE);  // a hint: small pages work as well
    }
  }
  reserved_bytes.fetch_add(size, std::memory_order_relaxed);
  system_allocations.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

void system_free(void* block, std::size_t index) noexcept {
  const std::size_t size = size_of_class(index);
  show(block, size, size);
  reserved_bytes.fetch_sub(size, std::memory_order_relaxed);
  if (index < heap_classes) {
    std::free(block);
  } else {
    ::munmap(block, size);
  }
}

// The number in a one-line file such as a control group's limit; 0 if not available.
std::uint64_t number_in_file(const char* path) noexcept {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  std::array<char, 32> text{};
  const ssize_t size = ::read(file, text.data(), text.size());
  ::close(file);
  std::uint64_t value = 0;
  if (size > 0) std::from_chars(text.data(), text.data() + size, value);
  return value;
}

std::size_t default_limit() noexcept {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  std::uint64_t memory = std::uint64_t{1} << 30;
  if (pages > 0 && page > 0) memory = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page);
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (const std::uint64_t bound = number_in_file(path); bound != 0) memory = std::min(memory, bound);
  }
  return static_cast<std::size_t>(memory / 8);
}

// The process's pool. Constant-initialised and never destroyed: tensors may outlive every static object.
class central_pool {
 public:
  void* take(std::size_t index) noexcept {
    const std::lock_guard lock(mutex_);
    if (index < heap_classes) return take_heap(index);
    return take_mapped(index);
  }

  // Up to `wanted` blocks of a heap class, linked by `next`.
  std::pair<free_block*, std::size_t> take_some(std::size_t index, std::size_t wanted) noexcept {
    const std::lock_guard lock(mutex_);
    free_block* chain = nullptr;
    std::size_t count = 0;
    while (count != wanted && free_[index]) {
      free_block* block = take_heap(index);
      block->next = chain;
      chain = block;
      ++count;
    }
    return {chain, count};
  }

  // Keeps a chain of blocks of one class, or releases them (or older ones) to the system when the limit is reached.
  void put(free_block* chain, std::size_t index) noexcept {
    free_block* evicted = nullptr;  // linked by `next`
    {
      const std::lock_guard lock(mutex_);
      const std::size_t bound = limit_locked();
      const std::size_t size = size_of_class(index);
      while (chain) {
        free_block* block = std::exchange(chain, chain->next);
        evict_locked(bound > size ? bound - size : 0, evicted);
        if (cached_ + size > bound) {
          block->index = index;
          block->next = evicted;
          evicted = block;
        } else {
          keep(block, index);
        }
      }
    }
    free_chain(evicted);
  }

  void set_limit(std::size_t bytes) noexcept {
    free_block* evicted = nullptr;
    {
      const std::lock_guard lock(mutex_);
      limit_ = bytes;
      shrink_locked(bytes, evicted);
    }
    free_chain(evicted);
  }

  void trim() noexcept {
    free_block* evicted = nullptr;
    {
      const std::lock_guard lock(mutex_);
      shrink_locked(0, evicted);
    }
    free_chain(evicted);
  }

  void read(cpu_pool_stats& stats) noexcept {
    const std::lock_guard lock(mutex_);
    stats.cached_bytes = cached_;
    stats.limit_bytes = limit_locked();
  }

 private:
  static constexpr std::size_t unset = std::numeric_limits<std::size_t>::max();

  std::size_t limit_locked() noexcept {
    if (limit_ == unset) limit_ = default_limit();
    return limit_;
  }

  free_block* take_heap(std::size_t index) noexcept {
    free_block* block = free_[index];
    if (!block) return nullptr;
    free_[index] = block->next;
    cached_ -= size_of_class(index);
    return block;
  }

  free_block* take_mapped(std::size_t index) noexcept {
    free_block* block = free_[index];
    if (!block) return nullptr;
    unlink(block);
    return block;
  }

  void unlink(free_block* block) noexcept {
    (block->previous ? block->previous->next : free_[block->index]) = block->next;
    if (block->next) block->next->previous = block->previous;
    (block->newer ? block->newer->older : newest_) = block->older;
    (block->older ? block->older->newer : oldest_) = block->newer;
    cached_ -= size_of_class(block->index);
  }

  void keep(free_block* block, std::size_t index) noexcept {
    block->index = index;
    block->next = free_[index];
    free_[index] = block;
    cached_ += size_of_class(index);
    if (index < heap_classes) return;
    block->previous = nullptr;
    if (block->next) block->next->previous = block;
    block->newer = nullptr;
    block->older = newest_;
    (newest_ ? newest_->newer : oldest_) = block;
    newest_ = block;
  }

  void evict_locked(std::size_t bound, free_block*& evicted) noexcept {
    while (cached_ > bound && oldest_) {
      free_block* block = oldest_;
      unlink(block);
      block->next = evicted;
      evicted = block;
    }
  }

  void shrink_locked(std::size_t bound, free_block*& evicted) noexcept {
    evict_locked(bound, evicted);
    for (std::size_t index = heap_classes; index-- != 0;) {
      while (cached_ > bound && free_[index]) {
        free_block* block = take_heap(index);
        block->index = index;
        block->next = evicted;
        evicted = block;
      }
    }
  }

  static void free_chain(free_block* chain) noexcept {
    while (chain) {
      free_block* block = std::exchange(chain, chain->next);
      system_free(block, block->index);
    }
  }

  std::mutex mutex_;
  std::array<free_block*, all_classes> free_{};
  free_block* newest_ = nullptr;
  free_block* oldest_ = nullptr;
  std::size_t cached_ = 0;
  std::size_t limit_ = unset;
};

constinit central_pool central;

// Small blocks of one thread: no lock on the usual path. Blocks may come from other threads; surplus goes to the pool
// and comes from there in batches, so that a thread that only allocates reuses blocks of one that only frees.
class thread_cache {
 public:
  void* take(std::size_t index) noexcept {
    list& blocks = lists_[index];
    if (!blocks.head) {
      if (closed_) return central.take(index);
      std::tie(blocks.head, blocks.count) = central.take_some(index, capacity(index) / 2);
      if (!blocks.head) return nullptr;
    }
    --blocks.count;
    return std::exchange(blocks.head, blocks.head->next);
  }

  void put(free_block* block, std::size_t index) noexcept {
    list& blocks = lists_[index];
    if (closed_) {
      block->next = nullptr;
      central.put(block, index);
      return;
    }
    if (blocks.count == capacity(index)) give(index, capacity(index) / 2);
    block->next = blocks.head;
    blocks.head = block;
    ++blocks.count;
  }

  void empty() noexcept {
    for (std::size_t index = 0; index != thread_classes; ++index) give(index, lists_[index].count);
  }

  ~thread_cache() {
    closed_ = true;  // thread-local objects destroyed later may still hold tensors
    empty();
  }

 private:
  struct list {
    free_block* head = nullptr;
    std::size_t count = 0;
  };
  static constexpr std::size_t capacity(std::size_t index) {
    return std::clamp<std::size_t>((std::size_t{64} << 10) / size_of_class(index), 2, 64);
  }
  void give(std::size_t index, std::size_t count) noexcept {
    list& blocks = lists_[index];
    free_block* chain = nullptr;
    for (blocks.count -= count; count != 0; --count) {
      free_block* block = std::exchange(blocks.head, blocks.head->next);
      block->next = chain;
      chain = block;
    }
    if (chain) central.put(chain, index);
  }

  std::array<list, thread_classes> lists_{};
  bool closed_ = false;
};

thread_local thread_cache small_blocks;

}  // namespace
}  // namespace detail

void* cpu_allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* memory = nullptr;
  if (bytes <= detail::largest_block) {
    const std::size_t index = detail::class_of(bytes);
    memory = index < detail::thread_classes ? detail::small_blocks.take(index) : detail::central.take(index);
    if (!memory) memory = detail::system_allocate(index);
    if (!memory) {
      cpu_pool_trim();
      memory = detail::system_allocate(index);
    }
    if (memory) {
      detail::show(memory, detail::size_of_class(index), bytes);
      return memory;
    }
  }
  throw_error(errc::out_of_memory, fmt::format("cannot allocate {} bytes on cpu ({} bytes are in use by tensors)",
                                               bytes, detail::reserved_bytes.load(std::memory_order_relaxed)));
}

void cpu_deallocate(void* memory, std::size_t bytes) noexcept {
  if (!memory) return;
  const std::size_t index = detail::class_of(bytes);
  const std::size_t size = detail::size_of_class(index);
  detail::show(memory, size, size);
  auto* block = new (memory) detail::free_block{};
  detail::hide(memory, size);
  if (index < detail::thread_classes) {
    detail::small_blocks.put(block, index);
  } else {
    detail::central.put(block, index);
  }
}

void cpu_pool_set_limit(std::size_t bytes) noexcept { detail::central.set_limit(bytes); }

void cpu_pool_trim() noexcept {
  detail::small_blocks.empty();
  detail::central.trim();
}

cpu_pool_stats get_cpu_pool_stats() noexcept {
  cpu_pool_stats stats;
  detail::central.read(stats);
  stats.reserved_bytes = detail::reserved_bytes.load(std::memory_order_relaxed);
  stats.system_allocations = detail::system_allocations.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace ferry::inline v0
