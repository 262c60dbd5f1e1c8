#include "staged_pieces.hpp"

#include <algorithm>
#include <utility>

#include <ferry/device/current.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/tensor/factories.hpp>

#include "../device/capture.hpp"
#include "../device/memory/pinned_memory.hpp"
#include "../transport/reactor/pending_copy.hpp"
#include "../wire/read_marks.hpp"

namespace ferry::inline v0::detail {

staged_pieces::staged_pieces(device where, std::shared_ptr<reactor> loop)
    : where_(where), loop_(std::move(loop)), fetch_(pool_stream(where)), store_(pool_stream(where)) {
  const stream current = current_stream(where);
  refuse_capture(current, "begin a collective");
  const event before = current.record();
  fetch_.wait(before);
  store_.wait(before);
}

void staged_pieces::take(std::vector<staged_part> parts, group_buffers& buffers) {
  parts_ = std::move(parts);
  for (const staged_part& each : parts_) {
    if (each.from.data) each.from.of.storage().record_use(fetch_);
    if (each.to.data) each.to.of.storage().record_use(store_);
  }
  const auto pieces = static_cast<std::size_t>(buffers.piece_count);
  buffers.staged.resize(pieces);
  transits_.resize(pieces);
  blocks_.resize(pieces);
}

void staged_pieces::read_in_order_of_results() const {
  for (const staged_part& each : parts_) {
    if (each.from.data) each.from.of.storage().record_use(store_);
  }
}

bool staged_pieces::fetch(group_buffers& buffers, std::int64_t piece, std::function<void()> goes_on) {
  const auto number = static_cast<std::size_t>(piece);
  if (const auto& begun = transits_[number]) {
    if (!begun->there.load(std::memory_order_acquire)) return false;
    if (begun->failure) std::rethrow_exception(begun->failure);
    return true;
  }
  const dtype type = buffers.whole.front().dtype();
  const std::int64_t count = buffers.size_of(piece);
  const std::size_t bytes = static_cast<std::size_t>(count) * dtype_size(type);
  const std::size_t offset = static_cast<std::size_t>(buffers.begin_of(piece)) * dtype_size(type);
  auto& memory = buffers.staged[number];
  auto& blocks = blocks_[number];
  memory.resize(parts_.size());
  blocks.resize(parts_.size());
  transits_[number] = std::make_shared<transit>();
  const auto& operations = operations_of(where_.kind);
  bool copies = false;
  for (std::size_t i = 0; i != parts_.size(); ++i) {
    const staged_part& each = parts_[i];
    if (count == 0 || (!each.from.data && !each.to.data)) {
      memory[i] = empty({count}, type);
      continue;
    }
    // A block whose last copy has not been reported goes back to the pool only behind it.
    blocks[i] = std::make_shared<pinned_block>(where_, bytes);
    memory[i] = from_blob(blocks[i]->data(), {count}, type, blocks[i]);
    if (!each.from.data) continue;
    blocks[i]->begin_use();
    operations.copy({}, blocks[i]->data(), where_, each.from.data + offset, bytes, where_, fetch_.handle());
    blocks[i]->release_after(fetch_);
    copies = true;
  }
  if (!copies) {
    transits_[number]->there.store(true, std::memory_order_release);
    return true;
  }
  pending_copy::watch(loop_, {fetch_},
                      [state = transits_[number], goes_on = std::move(goes_on)](std::exception_ptr failure) {
                        state->failure = std::move(failure);
                        state->there.store(true, std::memory_order_release);
                        goes_on();
                      });
  return false;
}

void staged_pieces::store(group_buffers& buffers, std::int64_t piece) {
  const auto number = static_cast<std::size_t>(piece);
  const std::size_t size = dtype_size(buffers.whole.front().dtype());
  const std::size_t bytes = static_cast<std::size_t>(buffers.size_of(piece)) * size;
  const std::size_t offset = static_cast<std::size_t>(buffers.begin_of(piece)) * size;
  const auto& operations = operations_of(where_.kind);
  for (std::size_t i = 0; i != parts_.size() && bytes != 0; ++i) {
    if (!parts_[i].to.data) continue;
    pinned_block& block = *blocks_[number][i];
    block.begin_use();
    operations.copy(where_, parts_[i].to.data + offset, {}, block.data(), bytes, where_, store_.handle());
    block.release_after(store_);
  }
  buffers.staged[number].clear();
  blocks_[number].clear();
}

void staged_pieces::mark(read_marks& marks) const {
  const bool fetches =
      std::any_of(parts_.begin(), parts_.end(), [](const staged_part& each) { return each.from.data; });
  marks.add({where_}, store_);
  if (fetches) marks.add({where_}, fetch_);
}

}  // namespace ferry::inline v0::detail
