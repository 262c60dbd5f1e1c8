#pragma once

// The devices that tests see, and what belongs to which of them: several are shown on each GPU.

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include <device/cuda/cuda_runtime.hpp>

namespace real_cuda {

/// The runtime below. Ends the process with a sentence if there is none.
const ferry::detail::cuda_runtime& lower();

/// The GPUs of this machine. Ends the process with a sentence if there is none.
int gpus();
/// The GPU that a shown device is on.
inline int gpu_of(int device) { return device % gpus(); }

/// Which shown device each handle belongs to. Thread-safe.
template <class Handle>
class belongings {
 public:
  void add(Handle handle, int device) {
    const std::lock_guard lock(mutex_);
    devices_[handle] = device;
  }
  bool remove(Handle handle) {
    const std::lock_guard lock(mutex_);
    return devices_.erase(handle) != 0;
  }
  std::optional<int> device_of(Handle handle) {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(handle);
    return found == devices_.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<std::pair<Handle, int>> all() {
    const std::lock_guard lock(mutex_);
    return {devices_.begin(), devices_.end()};
  }

 private:
  std::mutex mutex_;
  std::unordered_map<Handle, int> devices_;
};

/// Memory of devices that is had and not given back. Thread-safe.
class blocks_in_use {
 public:
  struct block {
    std::byte* start = nullptr;
    std::size_t bytes = 0;
    int device = 0;
    bool of_another_process = false;  // mapped here
  };
  void add(const block& one) {
    const std::lock_guard lock(mutex_);
    all_[one.start] = one;
  }
  std::optional<block> remove(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(static_cast<std::byte*>(memory));
    if (found == all_.end()) return std::nullopt;
    const block one = found->second;
    all_.erase(found);
    return one;
  }
  /// The block that the address is in.
  std::optional<block> around(const void* memory) {
    const std::lock_guard lock(mutex_);
    const auto* const at = static_cast<const std::byte*>(memory);
    auto found = all_.upper_bound(const_cast<std::byte*>(at));
    if (found == all_.begin()) return std::nullopt;
    --found;
    if (at >= found->second.start + found->second.bytes) return std::nullopt;
    return found->second;
  }
  std::size_t count(int device) {
    const std::lock_guard lock(mutex_);
    std::size_t found = 0;
    for (const auto& [start, one] : all_) found += one.device == device && !one.of_another_process ? 1 : 0;
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<std::byte*, block> all_;
};

}  // namespace real_cuda
