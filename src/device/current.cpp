#include <ferry/device/current.hpp>

#include <array>
#include <cstddef>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "device_state.hpp"
#include "lazy_streams.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Of the streams other than the default ones. Trivial: thread-local objects destroyed late may still use it.
constexpr std::size_t most_devices = 64;
constinit thread_local std::array<stream_choice, most_devices> chosen{};
constinit thread_local std::size_t chosen_count = 0;

stream_choice* find_chosen(device where) noexcept {
  for (std::size_t i = 0; i != chosen_count; ++i) {
    if (chosen[i].where == where) return &chosen[i];
  }
  return nullptr;
}

// Without a stream of the pool's the default one is current, which is slower but equally correct.
void* current_handle(const device_state& state) {
  stream_choice* const found = find_chosen(state.where);
  if (!found) return state.operations->default_stream(state.where);
  if (found->source) {
    lazy_streams* const source = std::exchange(found->source, nullptr);
    found->handle = state.operations->default_stream(state.where);
    try {
      found->handle = source->take(state.where).handle();
    } catch (const std::exception& problem) {
      log(log_level::debug, fmt::format("no stream of the pool's is current: {}", problem.what()));
    }
  }
  return found->handle;
}

// Replaces the choice for a device; returns the former one.
stream_choice exchange_choice(const stream_choice& now) {
  stream_choice* const found = find_chosen(now.where);
  const stream_choice former = found ? *found : stream_choice{now.where, nullptr, nullptr, false};
  if (found) {
    *found = now.any ? now : chosen[--chosen_count];
  } else if (now.any) {
    if (chosen_count == most_devices) {
      throw_error(errc::resource_exhausted,
                  fmt::format("a thread has current streams on at most {} devices", most_devices));
    }
    chosen[chosen_count++] = now;
  }
  return former;
}

}  // namespace

stream_choice choose_lazily(device where, lazy_streams& source) {
  return exchange_choice({state_of(where).where, nullptr, &source, true});
}

stream_choice choose_stream(const stream& now) {
  const device_state& state = state_of(now.device());
  return exchange_choice(
      {state.where, now.handle(), nullptr, now.handle() != state.operations->default_stream(state.where)});
}

void restore_choice(const stream_choice& former) noexcept {
  try {
    exchange_choice(former);
  } catch (const std::exception& problem) {  // the place of a choice that was made since has been given away
    log(log_level::error, problem.what());
  }
}

std::optional<stream> known_current_stream(device where) {
  const stream_choice* const found = find_chosen(where);
  if (found && found->source) return std::nullopt;
  return stream_of(where, current_handle(state_of(where)));
}

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
  (void)detail::choose_stream(now);
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
