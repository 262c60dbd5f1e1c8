#include "staged_send.hpp"

#include <algorithm>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/tensor/pack.hpp>

#include "../../device/memory/pinned_memory.hpp"
#include "../../wire/device_marks.hpp"
#include "direct_channel.hpp"
#include "staged_channel.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::array<std::byte, std::size_t{64} << 10> zeros{};

transfer_status record_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const error& e) {
    return {e.kind(), std::string(e.message())};
  } catch (const std::exception& e) {
    return {errc::out_of_memory, e.what()};
  }
}

}  // namespace

staged_send::staged_send(const outgoing_message& message, channel_context context, prefetch_count prefetched)
    : marks_(message.shared_marks()), prefetched_(std::move(prefetched)) {
  entries_.reserve(message.tensors.size());
  for (std::size_t i = 0; i != message.tensors.size(); ++i) {
    const tensor& each = message.tensors[i];
    const device from = each.device();
    stream on;
    if (!from.is_cpu()) {
      auto known = std::find_if(streams_.begin(), streams_.end(), [&](const stream& s) { return s.device() == from; });
      if (known == streams_.end()) {
        known = streams_.insert(known, context.ring->pick(from));
        if (marks_) marks_->wait_for(from, *known);
      }
      on = *known;
    }
    add(each, message.targets.empty() ? device() : message.targets[i], on, context);
  }
  left_ = static_cast<std::size_t>(bytes_);
  const std::size_t before = prefetched_->fetch_add(staging_piece);
  try {
    if (before + staging_piece <= staging_window) fetch(staging_piece);
  } catch (...) {
    prefetched_->fetch_sub(staging_piece);
    throw;
  }
  prefetched_here_ = fetched_;
  prefetched_->fetch_sub(staging_piece - prefetched_here_);
}

void staged_send::add(const tensor& packed, device to, const stream& on, const channel_context& context) {
  const device from = packed.device();
  if (context.direct && context.direct->can_lend(packed, to)) {
    if (auto source = open_lending_source(packed, context)) {
      ways_.resize(entries_.size() + 1);
      ways_.back() = std::byte{1};
      entries_.push_back({std::move(source), loan_note::encoded_size, false});
      bytes_ += loan_note::encoded_size;
      return;
    }
  }
  const channel_factory* channel = find_channel({from, to, false, true});
  if (!channel || !channel->open_source) {
    throw_error(errc::bad_device, "no channel moves tensors from " + to_string(from) + " into a byte stream");
  }
  const std::size_t bytes = packed_bytes(packed).size();
  if (!ways_.empty()) ways_.resize(entries_.size() + 1);
  entries_.push_back({channel->open_source(packed, on, context), bytes, !from.is_cpu()});
  bytes_ += bytes;
}

staged_send::~staged_send() { prefetched_->fetch_sub(prefetched_here_); }

bool staged_send::begun() const { return !marks_ || marks_->done(); }

// The bytes a source has already fetched count towards the window. Of tensors smaller than a block, at most as many are
// fetched as there are blocks in the window.
void staged_send::fetch(std::size_t window) {
  fetch_at_ = std::max(fetch_at_, at_);
  for (; fetch_at_ != entries_.size(); ++fetch_at_) {
    entry& next = entries_[fetch_at_];
    if (!next.on_device) continue;
    if (fetch_at_ - at_ >= window / pinned_block::smallest_size) return;
    const std::size_t held = next.source->fetched();
    next.source->fetch(window - std::min(window, fetched_ - held));
    fetched_ += next.source->fetched() - held;
    if (next.source->fetched() != next.left) return;
  }
}

std::size_t staged_send::collect(std::span<iovec> vectors) noexcept {
  std::size_t count = 0;
  const auto add = [&](std::span<const std::byte> bytes) {
    if (!bytes.empty()) vectors[count++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    return count != vectors.size();
  };
  const auto hand_out = [&](std::span<const std::byte> bytes) {
    handed_ += bytes.size();
    return add(bytes);
  };
  handed_ = 0;
  if (!failure_) {
    try {
      fetch(staging_window);
      for (std::size_t i = at_; i != entries_.size(); ++i) {
        const std::span<const std::byte> bytes = entries_[i].source->ready();
        if (!hand_out(bytes) || bytes.size() != entries_[i].left) return count;
      }
    } catch (...) {
      failure_ = std::current_exception();
      if (count != 0) return count;  // these bytes are still valid; the zeros that replace the rest are written next
    }
  }
  if (failure_) {
    // A note of which a part has been written is finished: the receiver gives back what it says.
    if (begun_note() && !hand_out(entries_[at_].source->ready())) return count;
    for (std::size_t left = left_ - handed_; left != 0;) {
      const std::size_t part = std::min(left, zeros.size());
      if (!add(std::span(zeros).first(part))) return count;
      left -= part;
    }
  }
  finish_record();
  add(std::span<const std::byte>(record_).subspan(record_written_));
  return count;
}

bool staged_send::begun_note() const noexcept {
  return at_ < ways_.size() && ways_[at_] == std::byte{1} && entries_[at_].left != loan_note::encoded_size;
}

bool staged_send::ready() const noexcept {
  if (failure_) return true;
  const auto next = std::find_if(entries_.begin() + static_cast<std::ptrdiff_t>(at_), entries_.end(),
                                 [](const entry& each) { return each.left != 0; });
  try {
    return next == entries_.end() || !next->source->ready().empty();
  } catch (const std::exception&) {
    return true;  // finish_record() and zeros can be written
  }
}

void staged_send::finish_record() noexcept {
  if (std::exchange(record_made_, true) || !failure_) return;
  try {
    record_of(failure_).encode(record_.data());
  } catch (const std::exception&) {  // no memory for the text
    transfer_status{errc::out_of_memory, {}}.encode(record_.data());
  }
}

void staged_send::consume(std::size_t bytes) noexcept {
  while (bytes != 0 && left_ != 0) {
    entry& next = entries_[at_];
    const std::size_t part = std::min(bytes, next.left);
    if (const std::size_t own = std::min(part, handed_); own != 0) {
      next.source->consume(own);
      if (next.on_device) fetched_ -= own;
      handed_ -= own;
    }
    next.left -= part;
    left_ -= part;
    bytes -= part;
    if (next.left == 0) ++at_;
  }
  record_written_ += bytes;
}

}  // namespace ferry::inline v0::detail
