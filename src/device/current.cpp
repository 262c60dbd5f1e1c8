#include <ferry/device/current.hpp>

#include <array>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "device_state.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Of the streams other than the default ones. Trivial: thread-local objects destroyed late may still use it.
struct chosen_stream {
  device where;
  void* handle = nullptr;
};
constexpr std::size_t most_devices = 64;
constinit thread_local std::array<chosen_stream, most_devices> chosen{};
constinit thread_local std::size_t chosen_count = 0;

chosen_stream* find_chosen(device where) noexcept {
  for (std::size_t i = 0; i != chosen_count; ++i) {
    if (chosen[i].where == where) return &chosen[i];
  }
  return nullptr;
}

void* current_handle(const detail::device_state& state) {
  const chosen_stream* found = find_chosen(state.where);
  return found ? found->handle : state.operations->default_stream(state.where);
}

}  // namespace
}  // namespace detail

device current_device(device_kind kind) {
  const device_operations& operations = operations_of(kind);
  const device result{kind, operations.current()};
  check_device(result);
  return result;
}

device_guard::device_guard(device where) : where_(where) {
  const device_operations& operations = *detail::state_of(where).operations;
  former_ = operations.current();
  if (former_ != where.index) operations.make_current(where.index);
}

device_guard::~device_guard() {
  if (former_ == where_.index) return;
  try {
    detail::state_of(where_).operations->restore_current(former_);
  } catch (const error& problem) {  // the former device existed when the guard began
    log(log_level::error, problem.what());
  }
}

stream current_stream(device where) {
  const detail::device_state& state = detail::state_of(where);
  return detail::stream_of(where, detail::current_handle(state));
}

stream set_current_stream(const stream& now) {
  const detail::device_state& state = detail::state_of(now.device());
  const stream former = detail::stream_of(state.where, detail::current_handle(state));
  if (detail::chosen_stream* found = detail::find_chosen(state.where)) {
    if (now.handle() != state.operations->default_stream(state.where)) {
      found->handle = now.handle();
    } else {
      *found = detail::chosen[--detail::chosen_count];
    }
  } else if (now.handle() != state.operations->default_stream(state.where)) {
    if (detail::chosen_count == detail::most_devices) {
      throw_error(errc::resource_exhausted,
                  fmt::format("a thread has current streams on at most {} devices", detail::most_devices));
    }
    detail::chosen[detail::chosen_count++] = {state.where, now.handle()};
  }
  return former;
}

stream_guard::~stream_guard() {
  try {
    set_current_stream(former_);
  } catch (const error& problem) {  // guards destroyed out of order
    log(log_level::error, problem.what());
  }
}

}  // namespace ferry::inline v0
