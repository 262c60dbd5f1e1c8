#include <ferry/device/stream.hpp>

#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "device_state.hpp"

namespace ferry::inline v0 {
namespace detail {

void refuse_native(device_kind wanted, device where) {
  throw_error(errc::bad_device, fmt::format("a handle of the kind '{}' was asked for, but this belongs to {}",
                                            device_kind_name(wanted), to_string(where)));
}

}  // namespace detail

bool stream::done() const { return detail::state_of(where_).operations->stream_done(where_, handle_); }

void stream::synchronize() const { detail::state_of(where_).operations->synchronize_stream(where_, handle_); }

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
    state.events.push_back(handle);
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
      if (!state.events.empty()) {
        handle_ = state.events.back();
        state.events.pop_back();
      }
    }
    if (!handle_) handle_ = state.operations->create_event(on.device());
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
  const std::lock_guard lock(state.mutex);
  const std::size_t place = state.next_stream;
  if (place == state.streams.size()) {
    state.streams.reserve(detail::streams_of_pool);
    state.streams.push_back(state.operations->create_stream(where));
  }
  state.next_stream = (place + 1) % detail::streams_of_pool;
  return detail::stream_of(where, state.streams[place]);
}

}  // namespace ferry::inline v0
