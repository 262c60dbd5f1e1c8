#pragma once

// The memory of the double's devices: one range of addresses each, handed out in blocks.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include <device/cuda/cuda_runtime.hpp>

#include "executor.hpp"
#include "shared_memory.hpp"

struct CUmemPoolHandle_st {
  int device = 0;
  bool exportable = false;
  bool opportunistic = true;
  bool exported = false;
  /// Of another process: the memory of its device, as it is mapped here.
  struct imported_memory {
    std::byte* start = nullptr;
    int file = -1;
    fake_cuda::openers* opened_by = nullptr;  // of each granule
    imported_memory(std::byte* at, int of, fake_cuda::openers* by) noexcept : start(at), file(of), opened_by(by) {}
    imported_memory(const imported_memory&) = delete;
    imported_memory& operator=(const imported_memory&) = delete;
    ~imported_memory();
  };
  std::shared_ptr<imported_memory> imported;
  std::uint64_t threshold = 0;
  std::uint64_t used = 0;
  std::uint64_t reserved = 0;
  std::set<int> reachable_from;
  /// A block that was given back: used again at once by the stream that did and by those that wait for it by an event, by
  /// others once the host has synchronized with it; if the pool is opportunistic, when that stream has got there.
  struct kept {
    std::byte* memory;
    std::size_t bytes;
    CUstream_st* stream;
    fake_cuda::marker_ptr freed;
  };
  std::vector<kept> cache;
};

namespace fake_cuda {

/// Where memory is.
struct place {
  enum class kind : std::uint8_t { pageable, pinned, device } what = kind::pageable;
  int device = -1;
  const std::set<int>* readers = nullptr;  ///< memory of another process: the devices that have access to it
  bool valid = true;                       ///< device memory: wholly inside of a block in use
};

/// The memory of all devices.
class device_arenas {
 public:
  static device_arenas& instance();

  /// From the pool's cache, or new; null if there is no room. `fresh` is set if it was not in the cache.
  void* allocate(CUmemPoolHandle_st& pool, std::size_t bytes, CUstream_st* stream);
  /// What is to be given back; false if it is no block in use.
  struct freed_block {
    CUmemPoolHandle_st* pool = nullptr;
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  bool take_back(void* memory, freed_block& block);
  void keep(const freed_block& block, CUstream_st* stream, marker_ptr freed);
  /// Gives kept blocks back to the device whose end the host has observed: by a synchronization, not by a question.
  void trim(CUmemPoolHandle_st& pool, std::size_t keep);
  void set_opportunistic(CUmemPoolHandle_st& pool, bool allowed);
  void usage(const CUmemPoolHandle_st& pool, std::uint64_t& reserved, std::uint64_t& used);
  void info(int device, std::size_t& free, std::size_t& total);
  void set_capacity(std::size_t bytes);
  std::size_t blocks(int device);

  // ---- between processes (shared_memory.cpp)
  /// A file descriptor for the pool; -1: it cannot be exported.
  int export_pool(CUmemPoolHandle_st& pool);
  /// The pool behind a descriptor of another process; null: it is none.
  std::unique_ptr<CUmemPoolHandle_st> import_pool(int descriptor);
  /// False: no block in use, or not of an exported pool.
  bool name_block(void* block, ferry::detail::cuda_block_name& name);
  /// Null: no block of this pool has the name, or it is mapped already, or about to be unmapped.
  void* map_block(const CUmemPoolHandle_st& pool, const ferry::detail::cuda_block_name& name);
  /// False: no mapped block. It stays mapped until end_unmapping().
  bool begin_unmapping(void* memory);
  void end_unmapping(void* memory);
  /// The block in which the address lies; false: in none.
  bool range_of(const void* address, void*& start, std::size_t& bytes);

  place locate(const void* memory, std::size_t bytes);
  void* allocate_pinned(std::size_t bytes);
  bool free_pinned(void* memory);

  [[nodiscard]] int key() const noexcept { return key_; }

 private:
  struct block {
    std::size_t bytes = 0;
    CUmemPoolHandle_st* pool = nullptr;
    bool in_use = false;
  };
  struct arena {
    int device = 0;
    int file = -1;                       // of the memory that other processes may map
    std::byte* start = nullptr;          // null: not mapped yet
    openers* opened_by = nullptr;        // of each granule, where there is a file
    std::map<std::byte*, block> blocks;  // in use or kept
    std::size_t taken = 0;
  };
  // A block of another process.
  struct mapped_block {
    std::shared_ptr<CUmemPoolHandle_st::imported_memory> of;
    int device = 0;
    const std::set<int>* readers = nullptr;  // of the pool
    std::size_t bytes = 0;
    bool closing = false;
  };
  device_arenas();
  void map(arena& which, bool shared);
  static openers* openers_of(int file, int device);
  /// Of the pool's blocks.
  arena& arena_of(const CUmemPoolHandle_st& pool);
  [[nodiscard]] std::size_t taken_of(int device) const;
  std::byte* carve(arena& from, std::size_t bytes, CUmemPoolHandle_st& pool);
  void check_not_open_elsewhere(const arena& of, const std::byte* memory);

  std::mutex mutex_;
  std::size_t capacity_ = std::size_t{64} << 20;
  std::vector<arena> arenas_;  // of each device one of its own, and one whose memory other processes may map
  std::map<std::byte*, mapped_block> mapped_;
  std::map<std::byte*, std::size_t> pinned_;
  int key_ = -1;
};

/// Lets this thread touch the memory of devices from now on.
void keep_memory_open();

}  // namespace fake_cuda
