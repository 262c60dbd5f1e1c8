#pragma once

// Host memory for tensors. A fresh buffer costs its page faults (3 GB/s in small pages, several times less than a copy
// into warm memory), so blocks are kept and reused: small ones by each thread, larger ones by a pool of the process.

#include <cstddef>
#include <cstdint>

namespace ferry::inline v0 {

/// The alignment of every block.
inline constexpr std::size_t cpu_alignment = 64;

/// At least `bytes` uninitialised bytes on a 64-byte boundary; nullptr for 0. Thread-safe.
/// Throws errc::out_of_memory, after releasing everything cached to the system.
/// Throws errc::out_of_memory, after giving everything cached back to the system.
[[nodiscard]] void* cpu_allocate(std::size_t bytes);

/// Frees what cpu_allocate(bytes) returned, on any thread. Thread-safe.
void cpu_deallocate(void* memory, std::size_t bytes) noexcept;

/// Bounds the bytes that the process keeps for reuse (the threads' caches, up to 2 MiB each, are extra); least recently
/// used blocks are released at once. Default: an eighth of the memory, of the machine or of the control group. 0: only
/// the threads' caches stay. Shared memory that is free, and that which other processes were handed over `shm`, have the same bound, each
/// for itself. Thread-safe.
void cpu_pool_set_limit(std::size_t bytes) noexcept;

/// Releases the cached blocks of the process and of the calling thread to the system. Thread-safe.
void cpu_pool_trim() noexcept;

/// A snapshot of the pool. Thread-safe; the figures may be from slightly different moments.
struct cpu_pool_stats {
  std::uint64_t reserved_bytes = 0;      ///< obtained from the system and not released, in use or cached
  std::uint64_t cached_bytes = 0;        ///< free in the process's pool (not those in the caches of threads)
  std::uint64_t limit_bytes = 0;         ///< bound on cached_bytes
  std::uint64_t system_allocations = 0;  ///< allocations from the system since the start
};
[[nodiscard]] cpu_pool_stats get_cpu_pool_stats() noexcept;

}  // namespace ferry::inline v0
