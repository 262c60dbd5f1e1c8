#pragma once

// The part of the memory of the double's devices that other processes may map: a file in memory, and behind it who has mapped what.

#include <array>
#include <cstddef>
#include <cstdint>

namespace fake_cuda {

inline constexpr std::size_t arena_size = std::size_t{1} << 30;  ///< of addresses, of each device
inline constexpr std::size_t granule = 512;                      ///< blocks are multiples of it

/// CUDA promises no more, so no block of the double is aligned to more.
inline constexpr std::size_t promised_alignment = 256;

/// The processes that have mapped a block.
using openers = std::array<std::uint32_t, 4>;

/// A file descriptor; ends the process if there is none to be had.
int make_shared_memory();

}  // namespace fake_cuda
