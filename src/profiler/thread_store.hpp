#pragma once

// What a thread uses again for each call, so that most need no memory of their own.

#include <array>
#include <cstddef>
#include <cstdint>

#include <ferry/rpc/context_values.hpp>

#include "profile_batch.hpp"
#include "profiled_thread.hpp"

namespace ferry::inline v0::detail {

/// Of one thread, from its first need on until it ends.
class thread_store {
 public:
  /// Null: the thread is about to end, or there was no memory.
  [[nodiscard]] static thread_store* of(profiled_thread& here) noexcept {
    return here.store || here.has_ended ? here.store : make(here);
  }
  thread_store() = default;
  ~thread_store();
  thread_store(const thread_store&) = delete;
  thread_store& operator=(const thread_store&) = delete;

  /// Memory of hooks: bytes_of_block of it. Null: there is none.
  [[nodiscard]] void* take_block() noexcept { return blocks_ == 0 ? nullptr : block_[--blocks_]; }
  /// False: there are enough.
  [[nodiscard]] bool keep_block(void* block) noexcept {
    if (sanitized || blocks_ == block_.size()) return false;
    block_[blocks_++] = block;
    return true;
  }

  /// Values with a recording of a request, which is event `number` of worker `node` and has begun. Recordings of requests that leave
  /// nothing but their handler are used again: one is as good as another, once nothing of the request knows it any more. Throws
  /// std::bad_alloc.
  [[nodiscard]] context_values begin_request(std::uint64_t number, std::int32_t node, const profile_wishes& wishes);
  /// The same, with a recording that is not used again.
  [[nodiscard]] static context_values make_request(std::uint64_t number, std::int32_t node,
                                                   const profile_wishes& wishes);

  static constexpr std::size_t bytes_of_block = 256;
  static constexpr std::size_t most_events_of_request = std::size_t{1} << 14U;

 private:
  // A use of hooks that are gone would not be noticed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr bool sanitized = true;
#elif defined(__has_feature)
  static constexpr bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
  static constexpr bool sanitized = false;
#endif
  static thread_store* make(profiled_thread& here) noexcept;

  // Whichever thread frees a block keeps it: few, as they may all come to one.
  std::array<void*, 16> block_{};
  std::size_t blocks_ = 0;
  // Handlers that are coroutines have theirs for longer than the thread runs them.
  std::array<context_values, 4> requests_;
  std::size_t oldest_ = 0;
};

/// Base class of hooks whose memory comes from the store of the thread that makes them, and goes to that of the one that destroys
/// them.
struct hooks_of_store {
  static void* operator new(std::size_t bytes);
  static void operator delete(void* block, std::size_t bytes) noexcept;
};

}  // namespace ferry::inline v0::detail
