#pragma once

// The parts of the channel cuda_staged that others need.

#include <cstddef>
#include <deque>
#include <memory>

#include <ferry/device/stream.hpp>

#include "../../device/memory/pinned_memory.hpp"

namespace ferry::inline v0::detail {

/// Counts the page-locked memory through which tensors arrive on devices over one connection: from when a block is taken until
/// a device has read what was received into it. Not thread-safe.
class staging_ring {
 public:
  /// A block of `bytes`; null if too much is under way to devices. Throws errc::out_of_memory, errc::device_failure.
  std::unique_ptr<pinned_block> take(device where, std::size_t bytes);
  /// The device reads one of so many bytes in the order of `on`, which has been told. True if so much is under way that
  /// a wait may be needed: the caller ensures a notification once it is done. Throws errc::device_failure.
  bool give_back(const stream& on, std::size_t bytes);

 private:
  struct entry {
    event read;
    std::size_t bytes;
  };
  void reap() noexcept;
  std::deque<entry> under_way_;
  std::size_t bytes_ = 0;  // of these
};

}  // namespace ferry::inline v0::detail
