#pragma once

// Host memory for tensors that other processes of the machine read in place: a call over `shm` hands such a tensor over without
// copying it.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ferry/tensor/dims.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Tensors of fewer bytes are copied faster than lent: the shared allocator takes ordinary memory for them.
inline constexpr std::size_t least_shared = std::size_t{128} << 10;

/// A snapshot of the shared memory of this process. Memory that another process still reads counts as used.
struct shared_memory_stats {
  std::uint64_t blocks = 0;      ///< in use
  std::uint64_t used_bytes = 0;  ///< in these blocks
  /// Free, kept for reuse; at most as many as cpu_pool_set_limit() allows the other pool.
  std::uint64_t cached_bytes = 0;
  /// The most that there can be (FERRY_SHARED_MEMORY, in MiB); 0: nothing can be shared.
  std::uint64_t capacity_bytes = 0;
  /// Of the used bytes, those of copies of ordinary tensors that other processes have; at most as many as cpu_pool_set_limit() allows.
  std::uint64_t handed_over_bytes = 0;
};

/// Allocates host memory that the process shares with those that it is connected to over `shm`. A tensor of such memory, or a view
/// of it that is one dense block, is not copied when a call or its result carries it to another process of the machine: the receiver
/// gets a tensor over the same memory, whatever its size, and the memory is free again when both have dropped it. Over other
/// transports, and to devices, it is sent like any other tensor.
///
/// The receiver's writes are its own: pages that it writes are copied then. The **sender's** are not: what it writes to the tensor
/// after the call has begun, the receiver may see, for as long as it keeps its tensor. So make a tensor for each message; memory
/// that was given back is used again, and costs nothing. (A tensor that is lent to a process already is copied when it is sent there
/// once more.)
///
/// Where memory cannot be shared, or none is left, all this gives ordinary memory; `worker::route()` says why. Thread-safe.
class shared_memory_allocator {
 public:
  /// A block of uninitialised bytes. Throws errc::out_of_memory.
  [[nodiscard]] storage allocate(std::size_t bytes) const;
  /// Uninitialised elements, contiguous. Throws as ferry::empty does.
  [[nodiscard]] tensor empty(const dims& shape, dtype type = dtype::f32) const;
  [[nodiscard]] tensor zeros(const dims& shape, dtype type = dtype::f32) const;
  /// A copy of a tensor, of any device: clone(), or to(device()), with their history. Throws what these throw.
  [[nodiscard]] tensor copy(const tensor& from) const;

  /// Whether the tensor's memory is shared. False for one that came from another process.
  [[nodiscard]] bool owns(const tensor& t) const noexcept;
  /// Gives memory that is free back to the system.
  void trim() const noexcept;
  [[nodiscard]] shared_memory_stats stats() const noexcept;
  /// Why there is no memory to share; a literal, empty if there is.
  [[nodiscard]] std::string_view obstacle() const noexcept;
};

/// The process's allocator of shared memory.
[[nodiscard]] constexpr shared_memory_allocator shared_allocator() noexcept { return {}; }

/// While it exists, tensors of the CPU of at least least_shared bytes that the thread makes, results of operations included, are
/// made by the shared allocator; not those that arrive from others. For messages, not for what lasts: a worker that fetches a parameter
/// which lies in shared memory sees it change with each step. Ends in the reverse order of beginning, on the thread where it began: no
/// `co_await` in between.
class shared_memory_scope {
 public:
  shared_memory_scope() noexcept;
  ~shared_memory_scope();
  shared_memory_scope(const shared_memory_scope&) = delete;
  shared_memory_scope& operator=(const shared_memory_scope&) = delete;

 private:
  const bool outer_;
};

namespace detail {
/// While it exists, the thread works for others than the program's code above it, and makes tensors in ordinary memory.
class ordinary_memory_scope {
 public:
  ordinary_memory_scope() noexcept;
  ~ordinary_memory_scope();
  ordinary_memory_scope(const ordinary_memory_scope&) = delete;
  ordinary_memory_scope& operator=(const ordinary_memory_scope&) = delete;

 private:
  const bool outer_;
};
}  // namespace detail

}  // namespace ferry::inline v0
