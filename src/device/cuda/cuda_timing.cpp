// Times that CUDA devices measure.

#include <cmath>
#include <cstdint>
#include <new>
#include <string_view>

#include "../timing.hpp"
#include "cuda_scope.hpp"

namespace ferry::inline v0::detail {
namespace {

// The profile goes without the time, and the device's next user is told what it has.
bool timing_worked(const cuda_scope& scope, cuda_status status, device where, std::string_view attempt) noexcept {
  if (status == cuda_error::success) return true;
  static_cast<void>(scope->get_last_error());
  note_cuda_failure(status, where, attempt);
  return false;
}

void* create_timed_event(device where) noexcept {
  const cuda_scope scope(where, std::nothrow);
  CUevent_st* event = nullptr;
  if (!scope.runtime()) return nullptr;
  return timing_worked(scope, scope->event_create_timed(&event), where, "create an event") ? event : nullptr;
}

void destroy_timed_event(device where, void* event) noexcept {
  const cuda_scope scope(where, std::nothrow);
  if (scope.runtime())
    static_cast<void>(
        timing_worked(scope, scope->event_destroy(static_cast<CUevent_st*>(event)), where, "destroy an event"));
}

// An event that is recorded in a stream that is captured becomes part of the graph, and to ask for it invalidates the capture.
bool record_timed_event(device where, void* event, void* stream) noexcept {
  const cuda_scope scope(where, std::nothrow);
  if (!scope.runtime()) return false;
  auto* const on = static_cast<CUstream_st*>(stream);
  bool capturing = false;
  if (!timing_worked(scope, scope->stream_is_capturing(on, &capturing), where,
                     "ask whether a stream is being captured") ||
      capturing) {
    return false;
  }
  return timing_worked(scope, scope->event_record(static_cast<CUevent_st*>(event), on), where, "record an event");
}

std::int64_t elapsed_cuda_time(device where, void* from, void* to) noexcept {
  constexpr double longest_ms = 1e9;  // 11 days
  const cuda_scope scope(where, std::nothrow);
  if (!scope.runtime()) return device_time_unknown;
  auto* const last = static_cast<CUevent_st*>(to);
  const cuda_status done = scope->event_query(last);
  if (done == cuda_error::not_ready) return device_time_pending;
  if (!timing_worked(scope, done, where, "query an event")) return device_time_unknown;
  float milliseconds = 0;
  const cuda_status measured = scope->event_elapsed_time(&milliseconds, static_cast<CUevent_st*>(from), last);
  if (!timing_worked(scope, measured, where, "measure the time between two events")) return device_time_unknown;
  const auto found = static_cast<double>(milliseconds);
  if (!(found >= 0 && found < longest_ms)) return device_time_unknown;
  return std::llround(found * 1e6);
}

}  // namespace

constinit const timing_operations cuda_timing{
    .create_event = &create_timed_event,
    .destroy_event = &destroy_timed_event,
    .record_event = &record_timed_event,
    .elapsed_ns = &elapsed_cuda_time,
};

}  // namespace ferry::inline v0::detail
