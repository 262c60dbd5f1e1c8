#pragma once

// The pieces of a collective on tensors of a device: in page-locked memory of the host while they are under way.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <ferry/device/stream.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/transport/reactor.hpp>

#include "group_buffers.hpp"

namespace ferry::inline v0::detail {

class pinned_block;
class read_marks;

/// For one element of group_buffers::whole, where its elements come from and where they go. Contiguous, or undefined: nowhere.
struct staged_part {
  struct place {
    tensor of;                  ///< kept, with its memory
    std::byte* data = nullptr;  ///< of the first element, on the device
  };
  place from;
  place to;
};

/// Copies pieces to the host and back, on two streams of the library's: the device gets on with the next piece while the members
/// exchange one, and no thread waits for it. Each piece is used by one thread at a time, several are at once.
class staged_pieces {
 public:
  /// What the caller has queued on its current stream so far comes first. Throws errc::device_failure, also if that stream is being
  /// captured.
  staged_pieces(device where, std::shared_ptr<reactor> loop);
  staged_pieces(const staged_pieces&) = delete;
  staged_pieces& operator=(const staged_pieces&) = delete;

  [[nodiscard]] const device& where() const noexcept { return where_; }
  /// The stream in whose order results are complete.
  [[nodiscard]] const stream& results() const noexcept { return store_; }
  [[nodiscard]] const std::vector<staged_part>& parts() const noexcept { return parts_; }
  /// `parts` as buffers.whole has them; buffers is complete otherwise. Call once.
  void take(std::vector<staged_part> parts, group_buffers& buffers);

  /// Something else than these copies is to read the tensors, in the order of the results, and write them.
  void read_in_order_of_results() const;
  /// Begins to copy a piece, at the first call for it. False: its elements are not there; `goes_on` is called once, on any thread,
  /// when they are. Throws errc::out_of_memory, and the failure of the device.
  bool fetch(group_buffers& buffers, std::int64_t piece, std::function<void()> goes_on);
  /// Queues the copies of the results of a piece, and lets go of its memory.
  void store(group_buffers& buffers, std::int64_t piece);
  /// What has been queued: a stream that waits for the marks waits for it.
  void mark(read_marks& marks) const;

 private:
  struct transit {
    std::exception_ptr failure;  // set before `there`
    std::atomic<bool> there{false};
  };

  const device where_;
  const std::shared_ptr<reactor> loop_;
  stream fetch_;
  stream store_;
  std::vector<staged_part> parts_;
  std::vector<std::shared_ptr<transit>> transits_;                  // by piece; null: not begun
  std::vector<std::vector<std::shared_ptr<pinned_block>>> blocks_;  // by piece, then as parts_
};

}  // namespace ferry::inline v0::detail
