#include "ranked_mutex.hpp"

#ifndef NDEBUG

  #include <array>
  #include <cstddef>
  #include <cstdio>
  #include <cstdlib>

namespace ferry::inline v0::detail {
namespace {

struct held_ranks {
  static constexpr std::size_t most = 32;
  std::array<lock_rank, most> of;
  std::size_t count;
};
thread_local constinit held_ranks ranks_of_thread{};

}  // namespace

void push_rank(const lock_rank& next) noexcept {
  held_ranks& held = ranks_of_thread;
  for (std::size_t i = 0; i != held.count; ++i) {
    if (held.of[i].rank < next.rank) continue;
    std::fprintf(
        stderr,
        "ferry: a thread takes the mutex of %s (rank %d) while it holds that of %s (rank %d): against the order "
        "in docs/architecture.md\n",
        next.name, next.rank, held.of[i].name, held.of[i].rank);
    std::abort();
  }
  if (held.count == held_ranks::most) std::abort();
  held.of[held.count++] = next;
}

void pop_rank(const lock_rank& released) noexcept {
  held_ranks& held = ranks_of_thread;
  for (std::size_t i = held.count; i != 0; --i) {
    if (held.of[i - 1].rank != released.rank) continue;
    for (std::size_t above = i; above != held.count; ++above) held.of[above - 1] = held.of[above];
    --held.count;
    return;
  }
}

}  // namespace ferry::inline v0::detail

#endif
