#include "staged_receive.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/tensor/pack.hpp>

#include "direct_channel.hpp"
#include "staged_channel.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t unwanted_at_once = std::size_t{64} << 10;

}  // namespace

void staged_receive::refuse(device where) {
  failure_ = make_error(
      errc::bad_device,
      fmt::format(
          "a tensor of the message is for {}, which is not among the devices of this worker (rpc_options::devices)",
          to_string(where)));
}

void staged_receive::begin() {
  parts_.reserve(descriptions_.size());
  tensors_.reserve(descriptions_.size());
  for (const tensor_description& each : descriptions_)
    parts_.push_back({nullptr, static_cast<std::size_t>(each.bytes)});
  record_left_ = has_record_ ? record_.size() : 0;
  if (ways_.empty()) advance();
}

// How each tensor comes is known now.
void staged_receive::take_ways() {
  for (std::size_t i = 0; i != ways_.size(); ++i) {
    const bool direct = ways_[i] == std::byte{1};
    if (!direct && ways_[i] != std::byte{}) throw_error(errc::malformed, "a tensor comes in a way that is not known");
    if (!direct) continue;
    const bool shared = context_.direct && (!descriptions_[i].where.is_cpu() || context_.direct->host());
    if (!shared || parts_[i].left == 0)
      throw_error(errc::malformed, "a tensor comes as memory that this connection does not share");
    parts_[i].direct = true;
    parts_[i].left = loan_note::encoded_size;
  }
  advance();
}

// Advances to the next tensor with missing bytes. Its memory is allocated only after all earlier tensors have arrived.
void staged_receive::advance() {
  for (; at_ != parts_.size(); ++at_) {
    if (!failure_ && tensors_.size() == at_) {
      try {
        receive_into(descriptions_[at_]);
      } catch (const error&) {
        failure_ = std::current_exception();
        fail();
      }
    }
    part& next = parts_[at_];
    if (failure_ && next.direct && next.left == loan_note::encoded_size) next.sink = open_giving_back_sink(context_);
    if (next.left != 0) return;
  }
}

// Whether no sender's memory is read any more.
bool staged_receive::settled() {
  if (failure_) return true;
  try {
    return std::all_of(parts_.begin(), parts_.end(), [](part& each) { return each.sink->settled(); });
  } catch (const error&) {
    failure_ = std::current_exception();
    fail();
    return true;
  }
}

void staged_receive::receive_into(const tensor_description& next) {
  if (next.where.is_cpu()) {
    if (next.where.index != 0) check_device(next.where);
    if (parts_[at_].direct) {  // it has memory
      tensors_.emplace_back();
      auto sink = std::make_unique<adopting_sink>(next, context_);
      parts_[at_].adopting = sink.get();
      parts_[at_].sink = std::move(sink);
      return;
    }
    tensors_.push_back(empty_packed(next.dtype, next.shape, next.strides));
    parts_[at_].sink = channel_traits<inline_tensors>::open_sink(tensors_.back(), {}, context_);
    return;
  }
  const channel_factory* channel = find_channel({device(), next.where, false, true});
  if (!channel || !channel->open_sink) {
    throw_error(errc::bad_device, "no channel moves tensors from a byte stream to " + to_string(next.where));
  }
  const stream& on = arrival(next.where);
  const stream_guard guard(on);
  tensors_.push_back(empty_packed(next.dtype, next.shape, next.strides, next.where));
  parts_[at_].sink = parts_[at_].direct ? channel_traits<cuda_ipc>::open_sink(tensors_.back(), on, context_)
                                        : channel->open_sink(tensors_.back(), on, context_);
}

// One stream for each device of the message.
const stream& staged_receive::arrival(device where) {
  const auto known =
      std::find_if(streams_.begin(), streams_.end(), [&](const stream& each) { return each.device() == where; });
  return known != streams_.end() ? *known : streams_.emplace_back(context_.ring->pick(where));
}

// Fails the message: releases its memory; its remaining bytes are received and discarded.
void staged_receive::fail() noexcept {
  for (part& each : parts_) {
    if (!each.direct || each.left == 0 || each.left == loan_note::encoded_size) each.sink.reset();
  }
  tensors_.clear();
  streams_.clear();
}

std::span<std::byte> staged_receive::room() {
  if (ways_read_ != ways_.size()) return std::span(ways_).subspan(ways_read_);
  if (at_ == parts_.size()) {
    if (!settled()) return {};
    return std::span(record_).last(record_left_);
  }
  part& next = parts_[at_];
  if (!failure_ || next.sink) {
    try {
      return next.sink->room();
    } catch (const error&) {
      failure_ = std::current_exception();
      fail();
    }
  }
  unwanted_.resize(unwanted_at_once);
  return std::span(unwanted_).first(std::min(next.left, unwanted_.size()));
}

void staged_receive::commit(std::size_t bytes) {
  if (ways_read_ != ways_.size()) {
    ways_read_ += bytes;
    if (ways_read_ == ways_.size()) take_ways();
    return;
  }
  if (at_ == parts_.size()) {
    record_left_ -= bytes;
    return;
  }
  part& next = parts_[at_];
  next.left -= bytes;
  if (next.sink && bytes != 0) {
    try {
      next.sink->commit(bytes);
    } catch (const error&) {
      if (!failure_) failure_ = std::current_exception();
      fail();
    }
  }
  advance();
}

void staged_receive::finish(inbound_message& message) {
  if (has_record_) {
    const transfer_status outcome = transfer_status::decode(record_.data());
    if (outcome.code != errc{}) {  // which explains zeros in the place of a note
      failure_ =
          make_error(outcome.code, "the sender's devices failed while its tensors were being sent: " + outcome.text);
      fail();
    }
  }
  for (std::size_t i = 0; i != tensors_.size(); ++i) {
    if (parts_[i].adopting) tensors_[i] = parts_[i].adopting->adopted();
  }
  check_received(tensors_);
  message.tensors = std::move(tensors_);
  std::erase_if(streams_, [](const stream& each) { return operations_of(each.device().kind).immediate; });
  message.streams = std::move(streams_);
  message.failure = failure_;
}

}  // namespace ferry::inline v0::detail
