#include "frame_reader.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ferry/tensor/pack.hpp>

#include "../../wire/tensor_table.hpp"

namespace ferry::inline v0::detail {

std::size_t frame_reader::prepare(std::array<iovec, max_vectors>& vectors, std::size_t& total) {
  std::size_t count = 0;
  total = 0;
  const auto add = [&](void* at, std::size_t size) {
    vectors[count++] = {at, size};
    total += size;
  };
  if (phase_ == phase::body) {
    const std::size_t body = message_.header.body_bytes();
    if (body_filled_ == message_.storage.capacity()) {  // grows with the bytes that have really arrived
      shared_block larger = shared_block::allocate(std::min(body, 2 * message_.storage.capacity()));
      std::memcpy(larger.data(), message_.storage.data(), body_filled_);
      message_.storage = std::move(larger);
    }
    add(message_.storage.data() + body_filled_, std::min(body, message_.storage.capacity()) - body_filled_);
    return count;
  }
  if (phase_ == phase::tensors) {
    std::size_t filled = tensor_filled_;
    std::size_t i = tensor_;
    std::size_t ahead = 0;
    for (; i != message_.header.tensor_count && count + 1 != max_vectors && ahead <= allocated_ahead; ++i) {
      if (i == message_.tensors.size()) allocate_tensor();
      const auto bytes = writable_packed_bytes(message_.tensors[i]);
      if (bytes.size() != filled) add(bytes.data() + filled, bytes.size() - filled);
      ahead += bytes.size() - filled + tensor_cost;
      filled = 0;
    }
    // The block comes after the last tensor: commit() assigns bytes to tensors as long as one is incomplete.
    if (i != message_.header.tensor_count) return count;
  }
  if (phase_ == phase::staged) {
    // The bytes in the block come first, even if there is room by now: resume() moves them there.
    const std::span<std::byte> room = begin_ == end_ ? staged_->room() : std::span<std::byte>();
    stalled_ = room.empty();
    straight_ = room.size() >= large_tensors;
    if (straight_) add(room.data(), room.size());
    if (stalled_ || straight_) return count;
  }
  make_room(frame_header::encoded_size);
  std::size_t room = std::min(block_bytes, block_.capacity()) - end_;
  // Tensor data received into the block would have to be copied out of it again.
  const bool large = phase_ == phase::tensors ? message_.header.tensor_bytes >= large_tensors : after_large_tensors_;
  if (large) room = std::min(room, header_read_ahead);
  add(block_at(end_), room);
  return count;
}

void frame_reader::commit(std::size_t count, message_sink& sink) {
  if (phase_ == phase::body) {
    body_filled_ += count;
    if (body_filled_ != message_.header.body_bytes()) return;
    finish_body(message_.storage.data(), sink);
    if (phase_ == phase::header) sink.on_frame(std::exchange(message_, {}));
  } else if (phase_ == phase::tensors) {
    while (count != 0 && tensor_ != message_.tensors.size()) {  // only into those that prepare() returned
      const std::size_t left = writable_packed_bytes(message_.tensors[tensor_]).size() - tensor_filled_;
      const std::size_t part = std::min(left, count);
      tensor_filled_ += part;
      count -= part;
      if (part == left) ++tensor_, tensor_filled_ = 0;
    }
    end_ += count;
  } else if (phase_ == phase::staged && straight_) {
    staged_->commit(count);
  } else {
    end_ += count;
  }
  parse(sink);
}

void frame_reader::parse(message_sink& sink) {
  for (;;) {
    if (phase_ == phase::body) return;
    if (phase_ == phase::tensors) {
      if (!take_tensor_bytes()) return;
      check_received(message_.tensors);
      phase_ = phase::header;
      after_large_tensors_ = message_.header.tensor_bytes >= large_tensors;
      sink.on_frame(std::exchange(message_, {}));
      continue;
    }
    if (phase_ == phase::staged) {
      if (!take_staged_bytes()) return;
      staged_->finish(message_);
      staged_.reset();
      phase_ = phase::header;
      after_large_tensors_ = false;
      sink.on_frame(std::exchange(message_, {}));
      continue;
    }
    stalled_ = sink.paused();
    if (stalled_ || !take_small_frame(sink)) return;
  }
}

void frame_reader::resume(message_sink& sink) { parse(sink); }

// Handles the frame at begin_ if it is complete, except for tensor data; false if more bytes are needed.
bool frame_reader::take_small_frame(message_sink& sink) {
  const std::size_t available = end_ - begin_;
  if (available < frame_header::encoded_size) return false;
  message_.header = frame_header::decode(block_at(begin_), limits_);
  const std::uint64_t body = message_.header.body_bytes();
  if (body > available - frame_header::encoded_size) {
    if (body + frame_header::encoded_size > block_bytes) {
      start_large_body();
      return true;
    }
    make_room(frame_header::encoded_size + static_cast<std::size_t>(body));
    return false;
  }
  message_.storage = block_;
  std::byte* start = block_at(begin_ + frame_header::encoded_size);
  begin_ += frame_header::encoded_size + static_cast<std::size_t>(body);
  finish_body(start, sink);
  if (phase_ != phase::header) return true;
  after_large_tensors_ = false;
  sink.on_frame(std::exchange(message_, {}));
  return true;
}

void frame_reader::start_large_body() {
  begin_ += frame_header::encoded_size;
  const std::uint64_t body = message_.header.body_bytes();
  message_.storage = shared_block::allocate(static_cast<std::size_t>(std::min<std::uint64_t>(body, body_step)));
  body_filled_ = end_ - begin_;
  std::memcpy(message_.storage.data(), block_at(begin_), body_filled_);
  begin_ = end_;
  phase_ = phase::body;
}

void frame_reader::finish_body(std::byte* body, const message_sink& sink) {
  const frame_header& header = message_.header;
  const auto payload_bytes = static_cast<std::size_t>(header.payload_bytes);
  message_.payload = {body, payload_bytes};
  message_.extensions = {body + payload_bytes, header.extension_bytes};
  phase_ = phase::header;
  const bool has_outcome = (header.flags & frame_outcome) != 0;
  if (header.tensor_count == 0 && header.table_bytes == 0 && header.tensor_bytes == 0 && !has_outcome) return;
  const std::span<const std::byte> table{body + payload_bytes + header.extension_bytes, header.table_bytes};
  const channel_context* const channels = sink.channels();
  const bool for_devices = names_devices(header, table);
  if (has_outcome ? !for_devices || channels : for_devices && channels) {
    staged_ = std::make_unique<staged_receive>(header, describe_tensors(header, table, limits_),
                                               channels ? *channels : channel_context{},
                                               [&](device where) { return sink.takes_tensors_on(where); });
    phase_ = phase::staged;
    return;
  }
  check_tensor_table(header, table, limits_);
  table_ = table;
  message_.tensors.reserve(std::min<std::size_t>(header.tensor_count, tensors_at_once));
  tensor_ = tensor_filled_ = 0;
  phase_ = phase::tensors;
}

void frame_reader::allocate_tensor() {
  message_.tensors.push_back(take_tensor(table_, message_.tensors.size(), limits_));
}

// Moves tensor bytes received into the block to their tensors; true once all tensors are complete.
bool frame_reader::take_tensor_bytes() {
  while (tensor_ != message_.header.tensor_count) {
    if (tensor_ == message_.tensors.size()) allocate_tensor();
    const auto bytes = writable_packed_bytes(message_.tensors[tensor_]);
    const std::size_t part = std::min(bytes.size() - tensor_filled_, end_ - begin_);
    if (part != 0) std::memcpy(bytes.data() + tensor_filled_, block_at(begin_), part);
    begin_ += part;
    tensor_filled_ += part;
    if (tensor_filled_ != bytes.size()) return false;
    ++tensor_;
    tensor_filled_ = 0;
  }
  return true;
}

// The same for a message that involves devices. Stalled: there is no room for more until a device has made progress.
bool frame_reader::take_staged_bytes() {
  stalled_ = false;
  while (!staged_->complete()) {
    const std::span<std::byte> room = staged_->room();
    stalled_ = room.empty();
    const std::size_t part = std::min(room.size(), end_ - begin_);
    if (part == 0) return false;
    std::memcpy(room.data(), block_at(begin_), part);
    begin_ += part;
    staged_->commit(part);
  }
  return true;
}

// Ensures that a message of `needed` bytes that starts at begin_ fits into the block.
void frame_reader::make_room(std::size_t needed) {
  const std::size_t kept = end_ - begin_;
  if (kept == 0 && block_.unique()) begin_ = end_ = 0;
  const std::size_t capacity = std::min(block_bytes, block_.capacity());
  // Avoids tiny reads into a nearly full block.
  if (block_ && begin_ + needed <= capacity && (kept != 0 || capacity - end_ >= 4096)) return;
  if (block_.unique()) {
    std::memmove(block_at(0), block_at(begin_), kept);
  } else {
    shared_block fresh = shared_block::allocate(block_bytes);
    if (kept != 0) std::memcpy(fresh.data(), block_at(begin_), kept);
    block_ = std::move(fresh);
  }
  begin_ = 0;
  end_ = kept;
}

}  // namespace ferry::inline v0::detail
