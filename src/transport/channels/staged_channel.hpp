#pragma once

// The parts of the channel cuda_staged that are used elsewhere.

#include <cstddef>
#include <deque>
#include <memory>

#include <ferry/device/stream.hpp>

#include "../../device/memory/pinned_memory.hpp"

namespace ferry::inline v0::detail {

/// Counts the page-locked memory through which tensors arrive on devices over one connection: from when a block is
/// taken until a device has read what was received into it. Not thread-safe.
class staging_ring {
 public:
  /// A block of `bytes`; null if the transfers to devices have reached their limit. Throws errc::out_of_memory,
  /// errc::device_failure.
  std::unique_ptr<pinned_block> take(device where, std::size_t bytes);
  /// A read of one block of `bytes` bytes has been queued on `on`. True if so much is in flight that the next take()
  /// may be refused: the caller then ensures that its channel_context::news is called when the read is done. Throws
  /// errc::device_failure.
  bool give_back(const stream& on, std::size_t bytes);

 private:
  struct entry {
    event read;
    std::size_t bytes;
  };
  void reap() noexcept;
  std::deque<entry> under_way_;
  std::size_t bytes_ = 0;  // of the entries above
};

}  // namespace ferry::inline v0::detail
