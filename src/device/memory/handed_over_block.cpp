#include "handed_over_block.hpp"

#include <algorithm>
#include <utility>

#include <ferry/device/cpu_pool.hpp>

#include "shared_arena.hpp"

namespace ferry::inline v0::detail {
namespace {

// In blocks that were handed over.
constinit std::atomic<std::size_t> handed_over_bytes{0};

// False, and adds nothing, if the sum were more than `most`.
bool add_within(std::atomic<std::size_t>& to, std::size_t what, std::uint64_t most) noexcept {
  std::size_t now = to.load(std::memory_order_relaxed);
  do {
    if (what > most || now > most - what) return false;
  } while (!to.compare_exchange_weak(now, now + what, std::memory_order_relaxed));
  return true;
}

}  // namespace

std::shared_ptr<const handed_over_block> handed_over_block::make(std::size_t bytes,
                                                                 const std::shared_ptr<handed_over_share>& share) {
  auto made = std::make_shared<const handed_over_block>(in_granules(bytes), share);
  return made->memory_ ? made : nullptr;
}

handed_over_block::handed_over_block(std::size_t bytes, std::shared_ptr<handed_over_share> share) noexcept
    : bytes_(bytes), share_(std::move(share)) {
  shared_arena* const arena = shared_arena::of_process();
  if (arena == nullptr) return;
  const auto limit = std::min<std::uint64_t>(get_cpu_pool_stats().limit_bytes, arena->bytes().size() / 2);
  if (!add_within(share_->blocks, 1, handed_over_share::most_blocks)) return;
  const bool only = share_->bytes.load(std::memory_order_relaxed) == 0;
  const std::size_t most = handed_over_share::most_bytes;
  if (add_within(share_->bytes, bytes_, only ? std::max(bytes_, most) : most)) {
    if (add_within(handed_over_bytes, bytes_, limit)) {
      memory_ = static_cast<std::byte*>(arena->allocate(bytes_, shared_arena::room::as_it_is));
      if (memory_) return;
      handed_over_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
    }
    share_->bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  }
  share_->blocks.fetch_sub(1, std::memory_order_relaxed);
}

handed_over_block::~handed_over_block() {
  if (!memory_) return;
  shared_arena::of_process()->deallocate(memory_, bytes_);
  handed_over_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  share_->bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  share_->blocks.fetch_sub(1, std::memory_order_relaxed);
}

std::uint64_t handed_over_block::bytes_of_process() noexcept {
  return handed_over_bytes.load(std::memory_order_relaxed);
}

}  // namespace ferry::inline v0::detail
