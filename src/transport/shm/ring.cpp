#include "ring.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__SANITIZE_THREAD__)
  #define FERRY_ORDERED_RINGS 1
#elif defined(__has_feature)
  #if __has_feature(thread_sanitizer)
    #define FERRY_ORDERED_RINGS 1
  #endif
#endif
#ifdef FERRY_ORDERED_RINGS
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace ferry::inline v0::detail {
namespace {

using shared_index = std::atomic_ref<std::uint64_t>;
using shared_flag = std::atomic_ref<std::uint32_t>;
static_assert(shared_index::is_always_lock_free && shared_flag::is_always_lock_free);

// Bytes are made visible in publishing_steps, so that the reader copies out while the writer copies in.
constexpr std::size_t publishing_steps = 4;
constexpr std::size_t cache_line = 64;
constexpr std::size_t expected_bytes = 256;

// The two ends of a ring within one process see the memory at different addresses, and so the thread sanitizer sees no order
// between them. As for a socket, whatever was written comes before whatever is read afterwards.
#ifdef FERRY_ORDERED_RINGS
std::array<char, 4096> order_of_rings;
void note_written(std::uint64_t ring) noexcept { __tsan_release(&order_of_rings[ring % order_of_rings.size()]); }
void note_read(std::uint64_t ring) noexcept { __tsan_acquire(&order_of_rings[ring % order_of_rings.size()]); }
#else
void note_written(std::uint64_t) noexcept {}
void note_read(std::uint64_t) noexcept {}
#endif

// A processor that is about to write there fetches the memory, which the other one has read, while this thread goes on.
void expect_write(const std::byte* at) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*at));
#else
  __builtin_prefetch(at, 1);
#endif
}

bool take_flag(std::uint32_t& flag) noexcept {
  const shared_flag shared(flag);
  return shared.load() != 0 && shared.exchange(0) != 0;
}

}  // namespace

std::size_t ring_writer::room() noexcept {
  const std::uint64_t consumed = shared_index(control_->consumed).load(std::memory_order_acquire);
  // Neither more than was written nor fewer than before.
  if (broken_ || written_ - consumed > capacity() || consumed < consumed_) {
    broken_ = true;
    return 0;
  }
  consumed_ = consumed;
  return capacity() - static_cast<std::size_t>(written_ - consumed);
}

std::size_t ring_writer::write(std::span<const iovec> from, bool& wake) noexcept {
  if (broken_) return 0;
  std::size_t room = capacity() - static_cast<std::size_t>(written_ - consumed_);
  std::size_t total = 0;
  std::size_t unpublished = 0;
  const auto publish = [&] {
    note_written(identity_);
    shared_index(control_->written).store(written_);
    unpublished = 0;
    if (take_flag(control_->reader_sleeps)) wake = true;
  };
  for (const iovec& part : from) {
    const auto* bytes = static_cast<const std::byte*>(part.iov_base);
    for (std::size_t left = part.iov_len; left != 0;) {
      if (room == 0 && (room = this->room()) == 0) {
        if (unpublished != 0) publish();
        return total;
      }
      const std::size_t at = offset(written_);
      const std::size_t count = std::min({left, room, capacity() - at, capacity() / publishing_steps - unpublished});
      std::memcpy(data_.data() + at, bytes, count);
      bytes += count;
      left -= count;
      room -= count;
      total += count;
      written_ += count;
      unpublished += count;
      if (unpublished == capacity() / publishing_steps) publish();
    }
  }
  if (unpublished != 0) publish();
  // The next message will be as small.
  if (total <= expected_bytes) {
    for (std::size_t ahead = 0; ahead < total + cache_line; ahead += cache_line) {
      expect_write(data_.data() + offset(written_ + ahead));
    }
  }
  return total;
}

bool ring_writer::announce_sleep() noexcept {
  shared_flag(control_->writer_sleeps).store(1);
  const std::uint64_t consumed = shared_index(control_->consumed).load();
  return consumed != consumed_;
}

bool ring_writer::reader_sleeps() const noexcept {
  return shared_flag(control_->reader_sleeps).load(std::memory_order_relaxed) != 0;
}

bool ring_writer::take_reader_sleep() noexcept { return take_flag(control_->reader_sleeps); }

std::size_t ring_reader::read(std::span<const iovec> into, bool& wake) noexcept {
  if (broken_) return 0;
  std::uint64_t consumed = consumed_.load(std::memory_order_relaxed);
  const std::uint64_t written = shared_index(control_->written).load(std::memory_order_acquire);
  if (written == consumed) return 0;
  std::uint64_t available = written - consumed;
  if (available > capacity()) {
    broken_ = true;
    return 0;
  }
  note_read(identity_);
  std::size_t total = 0;
  std::size_t unpublished = 0;
  const auto publish = [&] {
    consumed_.store(consumed, std::memory_order_relaxed);
    shared_index(control_->consumed).store(consumed);
    unpublished = 0;
    if (take_flag(control_->writer_sleeps)) wake = true;
  };
  for (const iovec& part : into) {
    auto* bytes = static_cast<std::byte*>(part.iov_base);
    for (std::size_t left = part.iov_len; left != 0 && available != 0;) {
      const std::size_t at = offset(consumed);
      const std::size_t count = std::min(
          {left, static_cast<std::size_t>(available), capacity() - at, capacity() / publishing_steps - unpublished});
      std::memcpy(bytes, data_.data() + at, count);
      bytes += count;
      left -= count;
      available -= count;
      total += count;
      consumed += count;
      unpublished += count;
      if (unpublished == capacity() / publishing_steps) publish();
    }
  }
  if (unpublished != 0) publish();
  return total;
}

bool ring_reader::has_input() const noexcept {
  return shared_index(control_->written).load(std::memory_order_relaxed) != consumed_.load(std::memory_order_relaxed);
}

bool ring_reader::announce_sleep() noexcept {
  shared_flag(control_->reader_sleeps).store(1);
  return shared_index(control_->written).load() != consumed_.load(std::memory_order_relaxed);
}

void ring_reader::withdraw_sleep() noexcept {
  const shared_flag flag(control_->reader_sleeps);
  if (flag.load(std::memory_order_relaxed) != 0) flag.store(0, std::memory_order_relaxed);
}

}  // namespace ferry::inline v0::detail
