#pragma once

// How a kernel of one index is started for all elements of a walk: in parts that 32 bits count, and by wide elements where memory
// is contiguous. Plain arithmetic on plans; it is tested without a GPU.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "walk.hpp"

#ifdef __CUDACC__
  #define FERRY_KERNEL __host__ __device__
#else
  #define FERRY_KERNEL
#endif

struct CUstream_st;

namespace ferry::inline v0::detail {

template <std::size_t N>
FERRY_KERNEL std::int64_t element_count(const walk<N>& plan) {
  std::int64_t count = 1;
  for (std::size_t axis = 0; axis != plan.rank; ++axis) count *= plan.shape[axis];
  return count;
}

/// Elements that indices of 32 bits count, with room for the step of a grid.
inline constexpr std::int64_t most_elements_at_once = std::int64_t{1} << 31;

/// Calls start(part) for walks of at most `most` elements that together are the plan; the first result that is not 0, or 0.
template <std::size_t N, class Start>
int for_each_part(const walk<N>& plan, std::int64_t most, const Start& start) {
  if (element_count(plan) <= most) return start(plan);
  const auto end = plan.shape.begin() + static_cast<std::ptrdiff_t>(plan.rank);
  const auto axis = static_cast<std::size_t>(std::max_element(plan.shape.begin(), end) - plan.shape.begin());
  const std::int64_t half = plan.shape[axis] / 2;
  walk<N> part = plan;
  part.shape[axis] = half;
  if (const int failed = for_each_part(part, most, start)) return failed;
  part.shape[axis] = plan.shape[axis] - half;
  for (std::size_t n = 0; n != N; ++n) part.start[n] += half * plan.steps[axis][n];
  return for_each_part(part, most, start);
}

/// The walk of a kernel: its plan, or that over the first elements of rows.
template <std::size_t N>
walk<N>& walk_of(walk<N>& plan) {
  return plan;
}
template <class Rows>
auto& walk_of(Rows& plan) {
  return plan.outer;
}

/// Starts a kernel with a member `plan` for each index of the walk. Indices have 32 bits.
template <class Launcher, class F>
int launch_walk(CUstream_st* stream, F function) {
  const auto whole = walk_of(function.plan);
  return for_each_part(whole, most_elements_at_once, [&](const auto& part) -> int {
    walk_of(function.plan) = part;
    return Launcher::launch(stream, static_cast<std::uint32_t>(element_count(part)), function);
  });
}

/// Whether all operands may be accessed in units of `bytes`.
template <std::size_t N>
bool is_aligned(const walk<N>& plan, std::size_t bytes) {
  const auto unit = static_cast<std::int64_t>(bytes);
  for (std::size_t n = 0; n != N; ++n) {
    if (reinterpret_cast<std::uintptr_t>(plan.start[n]) % bytes != 0) return false;
    for (std::size_t axis = 0; axis != plan.rank; ++axis) {
      if (plan.steps[axis][n] % unit != 0) return false;
    }
  }
  return true;
}

/// The same bytes as `plan`, whose elements have `size`, by elements of `wide` bytes; false if the last axis, or an operand's
/// alignment, does not allow it.
template <std::size_t N>
bool widen(walk<N>& plan, std::size_t size, std::size_t wide) {
  if (plan.rank == 0) return false;
  const std::size_t last = plan.rank - 1;
  const auto joined = static_cast<std::int64_t>(wide / size);
  if (plan.shape[last] % joined != 0) return false;
  walk<N> result = plan;
  for (std::size_t n = 0; n != N; ++n) {
    if (plan.steps[last][n] != static_cast<std::int64_t>(size)) return false;
    result.steps[last][n] = static_cast<std::int64_t>(wide);
  }
  result.shape[last] /= joined;
  if (!is_aligned(result, wide)) return false;
  plan = result;
  return true;
}

/// Calls start(stream, part, whether its elements are packs) for walks that together are the plan. A pack has 16 bytes; a block
/// whose end does not fill one is two walks.
template <std::size_t N, class Start>
int launch_packs(CUstream_st* stream, const walk<N>& plan, std::size_t size, const Start& start) {
  constexpr std::size_t pack = 16;
  const auto joined = static_cast<std::int64_t>(pack / size);
  if (plan.rank == 0 || joined < 2) return start(stream, plan, false);
  walk<N> packs = plan;
  const std::int64_t rest = plan.rank == 1 ? plan.shape[0] % joined : 0;
  packs.shape[0] -= rest;
  if (packs.shape[0] == 0 || !widen(packs, size, pack)) return start(stream, plan, false);
  const int failed = start(stream, packs, true);
  if (failed != 0 || rest == 0) return failed;
  walk<N> end = plan;
  end.shape[0] = rest;
  for (std::size_t n = 0; n != N; ++n) end.start[n] += (plan.shape[0] - rest) * plan.steps[0][n];
  return start(stream, end, false);
}

/// Calls start(stream, part, bytes of an element) for walks that together are the plan, by the widest elements that it has.
template <std::size_t N, class Start>
int launch_wide(CUstream_st* stream, const walk<N>& plan, std::size_t size, const Start& start) {
  return launch_packs<N>(stream, plan, size, [&](CUstream_st* on, const walk<N>& part, bool packs) -> int {
    if (packs) return start(on, part, std::size_t{16});
    walk<N> wider = part;
    for (std::size_t wide = 8; wide > size; wide /= 2) {
      if (widen(wider, size, wide)) return start(on, wider, wide);
    }
    return start(on, part, size);
  });
}

}  // namespace ferry::inline v0::detail
