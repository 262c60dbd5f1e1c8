#include <ferry/base/bytes.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

namespace ferry::inline v0 {
namespace detail {
namespace {

// Blocks of one size, cached by each thread. A block may be freed on another thread than it was allocated on: each
// cache is bounded, so one-way traffic between threads only means that one side falls back to malloc.
template <std::size_t Size, std::size_t Count>
class block_cache {
 public:
  void* take() noexcept { return count_ == 0 ? nullptr : blocks_[--count_]; }
  bool put(void* block) noexcept {
    if (closed_ || count_ == Count) return false;
    blocks_[count_++] = block;
    return true;
  }
  ~block_cache() {
    closed_ = true;  // a later thread_local destructor may still free buffers
    while (count_ != 0) std::free(blocks_[--count_]);
  }

 private:
  std::array<void*, Count> blocks_{};
  std::size_t count_ = 0;
  bool closed_ = false;
};

constexpr std::size_t small_block = 1024;
constexpr std::size_t receive_block = std::size_t{64} * 1024 + 64;

thread_local block_cache<small_block, 256> small_receive_blocks;
thread_local block_cache<receive_block, 8> receive_blocks;

void* checked(void* memory) {
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace
}  // namespace detail

void byte_buffer::grow(std::size_t more) {
  if (more > SIZE_MAX / 4 - size_) throw std::bad_alloc();
  const std::size_t wanted = size_ + more;
  if (!data_ && wanted <= detail::small_block) {
    void* block = detail::small_receive_blocks.take();
    data_ = static_cast<std::byte*>(block ? block : detail::checked(std::malloc(detail::small_block)));
    capacity_ = detail::small_block;
    return;
  }
  const std::size_t capacity = std::max({wanted, capacity_ * 2, detail::small_block});
  data_ = static_cast<std::byte*>(detail::checked(std::realloc(data_, capacity)));
  capacity_ = capacity;
}

void byte_buffer::release() noexcept {
  if (!data_) return;
  if (capacity_ != detail::small_block || !detail::small_receive_blocks.put(data_)) std::free(data_);
  data_ = nullptr;
  size_ = capacity_ = 0;
}

struct shared_block::header {
  std::atomic<std::size_t> references;
  std::size_t capacity;
  byte_buffer adopted;  // if not empty, it holds the bytes, else they follow the header
};
static constexpr std::size_t block_header = 64;  // keeps the bytes on a separate cache line

static constexpr std::size_t small_capacity = detail::small_block - block_header;
static constexpr std::size_t receive_capacity = detail::receive_block - block_header;

shared_block shared_block::allocate(std::size_t capacity) {
  static_assert(sizeof(header) <= block_header);
  if (capacity > SIZE_MAX / 2) throw std::bad_alloc();
  void* memory = nullptr;
  if (capacity <= small_capacity) {
    capacity = small_capacity;
    memory = detail::small_receive_blocks.take();
  } else if (capacity <= receive_capacity && capacity > receive_capacity / 2) {
    capacity = receive_capacity;
    memory = detail::receive_blocks.take();
  }
  if (!memory) memory = detail::checked(std::malloc(capacity + block_header));
  shared_block result;
  result.block_ = new (memory) header{1, capacity, {}};
  return result;
}

shared_block shared_block::adopt(byte_buffer&& buffer) {
  if (buffer.size() <= small_capacity) {  // a cached block and a copy cost less than a call of malloc
    shared_block result = allocate(buffer.size());
    if (!buffer.empty()) std::memcpy(result.data(), buffer.data(), buffer.size());
    buffer.clear();
    return result;
  }
  shared_block result;
  result.block_ = new (detail::checked(std::malloc(block_header))) header{1, buffer.size(), std::move(buffer)};
  return result;
}

shared_block::shared_block(const shared_block& other) noexcept : block_(other.block_) {
  if (block_) block_->references.fetch_add(1, std::memory_order_relaxed);
}

void shared_block::reset() noexcept {
  header* block = std::exchange(block_, nullptr);
  if (!block || block->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::size_t capacity = block->adopted.empty() ? block->capacity : 0;
  block->~header();
  if (capacity == receive_capacity && detail::receive_blocks.put(block)) return;
  if (capacity == small_capacity && detail::small_receive_blocks.put(block)) return;
  std::free(block);
}

std::byte* shared_block::data() const noexcept {
  return block_->adopted.empty() ? reinterpret_cast<std::byte*>(block_) + block_header : block_->adopted.data();
}
std::size_t shared_block::capacity() const noexcept { return block_ ? block_->capacity : 0; }
bool shared_block::unique() const noexcept { return block_ && block_->references.load(std::memory_order_acquire) == 1; }

}  // namespace ferry::inline v0
