#include <ferry/device/stream.hpp>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "capture.hpp"
#include "device_state.hpp"
#include "stream_use.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constinit std::atomic<std::size_t> wanted_streams{32};

// The place of the stream to hand out next, of `existing` ones. With the mutex held: looks at a few, not at all.
std::size_t next_idle_stream(const device_state& state, std::size_t existing) {
  constexpr std::size_t most_asked = 8;
  std::size_t not_captured = state.next_stream;
  bool found = false;
  for (std::size_t i = 0; i != std::min(existing, most_asked); ++i) {
    const std::size_t place = (state.next_stream + i) % existing;
    const stream_use use = use_of_stream(state, state.streams[place]);
    if (use == stream_use::idle) return place;
    if (use == stream_use::busy && !std::exchange(found, true)) not_captured = place;
  }
  return not_captured;
}

}  // namespace

void refuse_capture(const stream& on, std::string_view attempt) {
  if (!on.capturing()) return;
  throw_error(
      errc::device_failure,
      fmt::format("cannot {} in the order of a stream of {} that is being captured: it would become part of the graph. "
                  "End the capture first, or make a stream current that is not captured (stream_guard)",
                  attempt, to_string(on.device())));
}

void refuse_native(device_kind wanted, device where) {
  throw_error(errc::bad_device, fmt::format("a handle of the kind '{}' was asked for, but this belongs to {}",
                                            device_kind_name(wanted), to_string(where)));
}

}  // namespace detail

bool stream::done() const {
  detail::refuse_capture(*this, "ask for completed work");
  return detail::state_of(where_).operations->stream_done(where_, handle_);
}

bool stream::capturing() const { return detail::state_of(where_).operations->capturing(where_, handle_); }

void stream::synchronize() const {
  const device_operations& operations = *detail::state_of(where_).operations;
  if (operations.immediate) return operations.synchronize_stream(where_, handle_);
  if (done()) {
    // Returns at once, and has the runtime observe it: memory that was freed there can be given back to the device then.
    operations.synchronize_stream(where_, handle_);
    return;
  }
  event end = event::for_waiting();
  end.record(*this);
  end.synchronize();
}

void stream::wait(const event& mark) const {
  if (!mark.handle_) return;
  if (mark.where_.kind == where_.kind) {
    detail::state_of(where_).operations->wait_event(where_, handle_, mark.handle_);
  } else if (where_.is_cpu()) {
    mark.synchronize();  // the CPU has no stream that could wait
  } else {
    throw_error(errc::bad_device,
                fmt::format("a stream of {} cannot wait for an event of {}: they are of different kinds",
                            to_string(where_), to_string(mark.where_)));
  }
}

void stream::wait(const stream& other) const {
  if (other == *this) return;
  if (detail::state_of(other.where_).operations->immediate) return;  // its work has completed
  wait(other.record());
}

event stream::record() const {
  event result;
  result.record(*this);
  return result;
}

void stream::call_on_host(void (*function)(void*), void* argument) const {
  detail::state_of(where_).operations->call_on_host(where_, handle_, function, argument);
}

event::~event() { release(); }

void event::release() noexcept {
  if (!handle_) return;
  void* handle = std::exchange(handle_, nullptr);
  try {
    detail::device_state& state = detail::state_of(where_);
    const std::lock_guard lock(state.mutex);
    (for_waiting_ ? state.waiting_events : state.events).push_back(handle);
  } catch (...) {  // no memory for the list, or a foreign event without device
    const device_operations* operations = nullptr;
    try {
      operations = &operations_of(where_.kind);
    } catch (...) {
      return;
    }
    operations->destroy_event(where_, handle);
  }
}

void event::record(const stream& on) {
  detail::device_state& state = detail::state_of(on.device());
  if (where_ != on.device()) release();
  if (!handle_ && !state.operations->immediate) {
    {
      const std::lock_guard lock(state.mutex);
      std::vector<void*>& unused = for_waiting_ ? state.waiting_events : state.events;
      if (!unused.empty()) {
        handle_ = unused.back();
        unused.pop_back();
      }
    }
    if (!handle_) {
      handle_ = for_waiting_ ? state.operations->create_waiting_event(on.device())
                             : state.operations->create_event(on.device());
    }
  }
  where_ = on.device();
  if (handle_) state.operations->record_event(where_, handle_, on.handle());
}

bool event::done() const { return !handle_ || detail::state_of(where_).operations->event_done(where_, handle_); }

void event::synchronize() const {
  if (handle_) detail::state_of(where_).operations->synchronize_event(where_, handle_);
}

stream default_stream(device where) {
  return detail::stream_of(where, detail::state_of(where).operations->default_stream(where));
}

stream pool_stream(device where) {
  detail::device_state& state = detail::state_of(where);
  if (state.operations->immediate) return default_stream(where);
  const std::size_t size = stream_pool_size();
  const std::lock_guard lock(state.mutex);
  if (state.next_stream >= size) state.next_stream = 0;
  if (state.next_stream == state.streams.size()) {
    state.streams.reserve(size);
    state.streams.push_back(state.operations->create_stream(where));
    return detail::stream_of(where, state.streams[state.next_stream++]);
  }
  const std::size_t existing = std::min(size, state.streams.size());
  const std::size_t place = detail::next_idle_stream(state, existing);
  state.next_stream = place + 1;
  return detail::stream_of(where, state.streams[place]);
}

void set_stream_pool_size(std::size_t streams) {
  constexpr std::size_t most = 1024;
  if (streams == 0 || streams > most)
    throw_error(errc::invalid_argument, fmt::format("a pool has from 1 to {} streams, not {}", most, streams));
  detail::wanted_streams.store(streams, std::memory_order_relaxed);
}

std::size_t stream_pool_size() noexcept { return detail::wanted_streams.load(std::memory_order_relaxed); }

}  // namespace ferry::inline v0
