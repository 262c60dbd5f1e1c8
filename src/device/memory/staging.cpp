#include "staging.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "../device_state.hpp"

namespace ferry::inline v0::detail {
namespace {

// Blocks have few sizes, so that they can be reused.
constexpr std::size_t smallest_block = std::size_t{64} << 10;
constexpr std::size_t largest_piece = std::size_t{4} << 20;

// A block that returns to the device's list at the end, and is reused when `used` has completed.
class staging_memory {
 public:
  staging_memory(device_state& state, std::size_t bytes) : state_(&state) {
    block_.size = std::max(std::bit_ceil(bytes), smallest_block);
    {
      const std::lock_guard lock(state.staging_mutex);
      for (auto& each : state.staging) {
        if (each.size != block_.size || !each.free_after.done()) continue;
        block_.memory = each.memory;
        std::swap(each, state.staging.back());
        state.staging.pop_back();
        break;
      }
      state.staging.reserve(state.staging.size() + state.staging_in_use +
                            1);  // so that returning blocks does not throw
      ++state.staging_in_use;
    }
    try {
      if (!block_.memory) block_.memory = state.operations->allocate_staging(state.where, block_.size);
    } catch (...) {
      const std::lock_guard lock(state.staging_mutex);
      --state.staging_in_use;
      throw;
    }
  }
  staging_memory(const staging_memory&) = delete;
  staging_memory& operator=(const staging_memory&) = delete;
  ~staging_memory() {
    const std::lock_guard lock(state_->staging_mutex);
    --state_->staging_in_use;
    // A block that the device may use for an unknown time is leaked with the device.
    if (!lost_) state_->staging.push_back(std::move(block_));
  }

  [[nodiscard]] void* data() const noexcept { return block_.memory; }
  // A copy on `on` uses the block: already queued, and complete when the stream reaches this point.
  void used_by(const stream& on) {
    lost_ = true;
    block_.free_after.record(on);
    lost_ = false;
  }
  void begin_use() noexcept { lost_ = true; }
  [[nodiscard]] const event& free_after() const noexcept { return block_.free_after; }

 private:
  device_state* state_;
  device_state::staging_block block_{};
  bool lost_ = false;
};

}  // namespace

void upload(const stream& on, void* target, const void* source, std::size_t bytes) {
  device_state& state = state_of(on.device());
  for (std::size_t done = 0; done != bytes;) {
    const std::size_t now = std::min(bytes - done, largest_piece);
    staging_memory block(state, now);
    std::memcpy(block.data(), static_cast<const std::byte*>(source) + done, now);
    block.begin_use();
    state.operations->copy(on.device(), static_cast<std::byte*>(target) + done, {}, block.data(), now, on.device(),
                           on.handle());
    block.used_by(on);
    done += now;
  }
}

void download(const stream& on, void* target, const void* source, std::size_t bytes) {
  device_state& state = state_of(on.device());
  // While the host copies one piece out, the device transfers the next.
  std::array<std::optional<staging_memory>, 2> blocks;
  std::size_t coming = 0;  // the size of the piece in transfer
  for (std::size_t done = 0, piece = 0; done != bytes || coming != 0; ++piece) {
    const std::size_t now = std::min(bytes - done, largest_piece);
    if (now != 0) {
      staging_memory& block = blocks[piece % 2].emplace(state, now);
      block.begin_use();
      state.operations->copy({}, block.data(), on.device(), static_cast<const std::byte*>(source) + done, now,
                             on.device(), on.handle());
      block.used_by(on);
    }
    if (coming != 0) {
      std::optional<staging_memory>& block = blocks[(piece + 1) % 2];
      block->free_after().synchronize();
      std::memcpy(static_cast<std::byte*>(target) + done - coming, block->data(), coming);
      block.reset();
    }
    coming = now;
    done += now;
  }
}

void trim_staging(device where) {
  device_state& state = state_of(where);
  const std::lock_guard lock(state.staging_mutex);
  std::erase_if(state.staging, [&](device_state::staging_block& each) {
    try {
      if (!each.free_after.done()) return false;
    } catch (const std::exception&) {  // the device has failed, and may still write there
      return false;
    }
    state.operations->deallocate_staging(where, each.memory, each.size);
    return true;
  });
}

}  // namespace ferry::inline v0::detail
