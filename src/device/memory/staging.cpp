#include "staging.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "../capture.hpp"
#include "../device_state.hpp"
#include "pinned_memory.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t largest_piece = std::size_t{4} << 20;

// A piece on its way to the host.
struct downloaded_piece {
  downloaded_piece(device where, std::size_t bytes) : block(where, bytes) {}
  pinned_block block;
  event there = event::for_waiting();
};

}  // namespace

void upload(const stream& on, void* target, const void* source, std::size_t bytes) {
  refuse_capture(on, "copy elements from the host");
  device_state& state = state_of(on.device());
  for (std::size_t done = 0; done != bytes;) {
    const std::size_t now = std::min(bytes - done, largest_piece);
    static_cast<void>(wait_for_pinned_memory(on.device(), now));
    pinned_block block(on.device(), now);
    std::memcpy(block.data(), static_cast<const std::byte*>(source) + done, now);
    block.begin_use();
    state.operations->copy(on.device(), static_cast<std::byte*>(target) + done, {}, block.data(), now, on.device(),
                           on.handle());
    block.release_after(on);
    done += now;
  }
}

void download(const stream& on, void* target, const void* source, std::size_t bytes) {
  refuse_capture(on, "copy elements to the host");
  device_state& state = state_of(on.device());
  // While the host copies one piece out, the device transfers the next.
  std::array<std::optional<downloaded_piece>, 2> pieces;
  std::size_t coming = 0;  // the size of the piece in transfer
  for (std::size_t done = 0, number = 0; done != bytes || coming != 0; ++number) {
    const std::size_t now = std::min(bytes - done, largest_piece);
    if (now != 0) {
      downloaded_piece& piece = pieces[number % 2].emplace(on.device(), now);
      piece.block.begin_use();
      state.operations->copy({}, piece.block.data(), on.device(), static_cast<const std::byte*>(source) + done, now,
                             on.device(), on.handle());
      piece.block.release_after(on);
      piece.there.record(on);
    }
    if (coming != 0) {
      std::optional<downloaded_piece>& piece = pieces[(number + 1) % 2];
      piece->there.synchronize();
      std::memcpy(static_cast<std::byte*>(target) + done - coming, piece->block.data(), coming);
      piece.reset();
    }
    coming = now;
    done += now;
  }
}

}  // namespace ferry::inline v0::detail
