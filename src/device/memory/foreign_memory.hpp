#pragma once

// Memory of devices with streams that ferry did not allocate.

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {

/// Holds the owner of such memory, who alone controls it, until the work queued on it has completed. Destroying this
/// never waits: if work is queued, the owner is released later, on a thread of the library.
class foreign_memory {
 public:
  explicit foreign_memory(std::shared_ptr<const void> owner) : owner_(std::move(owner)) {}
  foreign_memory(const foreign_memory&) = delete;
  foreign_memory& operator=(const foreign_memory&) = delete;
  ~foreign_memory();

  /// `by` uses the memory: all work queued on it until this is destroyed counts. Thread-safe.
  void record_use(const stream& by);

 private:
  std::shared_ptr<const void> owner_;
  std::mutex mutex_;
  std::vector<stream> users_;
};

}  // namespace ferry::inline v0::detail
