#include "profiled_thread.hpp"

#include <atomic>

#include <sys/syscall.h>
#include <unistd.h>

namespace ferry::inline v0::detail {
namespace {

constexpr std::uint64_t numbers_of_block = 256;
constinit std::atomic<std::uint64_t> next_number{1};

}  // namespace

constinit thread_local profiled_thread this_profiled_thread{};

std::uint32_t ask_thread_number() noexcept { return static_cast<std::uint32_t>(::syscall(SYS_gettid)); }

std::uint64_t reserve_event_numbers(std::uint64_t count) noexcept {
  return next_number.fetch_add(count, std::memory_order_relaxed);
}

void take_event_numbers(profiled_thread& here) noexcept {
  here.next_number = reserve_event_numbers(numbers_of_block);
  here.end_of_numbers = here.next_number + numbers_of_block;
}

}  // namespace ferry::inline v0::detail
