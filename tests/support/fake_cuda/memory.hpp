#pragma once

// The memory of the double's devices: one range of addresses each, handed out in blocks.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "executor.hpp"

struct CUmemPoolHandle_st {
  int device = 0;
  bool exportable = false;
  bool opportunistic = true;
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
  bool valid = true;  ///< device memory: wholly inside of a block in use
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
    std::byte* start = nullptr;
    std::map<std::byte*, block> blocks;  // in use or kept
    std::size_t taken = 0;
  };
  device_arenas();
  std::byte* carve(arena& from, std::size_t bytes, CUmemPoolHandle_st& pool);

  std::mutex mutex_;
  std::size_t capacity_ = std::size_t{64} << 20;
  std::vector<arena> arenas_;
  std::map<std::byte*, std::size_t> pinned_;
  int key_ = -1;
};

/// Lets this thread touch the memory of devices from now on.
void keep_memory_open();

}  // namespace fake_cuda
