#include "captures.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <device/cuda/cuda_runtime.hpp>

namespace fake_cuda {
namespace {

namespace cuda_error = ferry::detail::cuda_error;

constexpr int unmatched = 903;
constexpr int wrong_thread = 908;

struct capture_list {
  std::mutex mutex;  // guards this, all captures, and what streams and events know of them
  std::vector<capture_ptr> active;
};
capture_list& captures() {
  static auto* const all = new capture_list;
  return *all;
}

thread_local int thread_mode = static_cast<int>(capture_mode::global);

int invalidate(capture& one, int error) {
  one.invalid = true;
  return error;
}

}  // namespace

int exchange_capture_mode(int mode) { return std::exchange(thread_mode, mode); }

capture_mode thread_capture_mode() { return static_cast<capture_mode>(thread_mode); }

int check_unsafe_call() {
  constexpr auto relaxed = static_cast<int>(capture_mode::relaxed);
  if (thread_mode == relaxed) return cuda_error::success;
  capture_list& all = captures();
  const std::lock_guard lock(all.mutex);
  int result = cuda_error::success;
  for (const capture_ptr& each : all.active) {
    const bool own = each->thread == std::this_thread::get_id() && each->mode != relaxed;
    const bool global =
        each->mode == static_cast<int>(capture_mode::global) && thread_mode == static_cast<int>(capture_mode::global);
    if (own || global) result = invalidate(*each, cuda_error::capture_unsupported);
  }
  return result;
}

capture_verdict record_node(CUstream_st* stream) {
  const std::lock_guard lock(captures().mutex);
  if (!stream->capturing) return capture_verdict::none;
  if (stream->capturing->invalid) return capture_verdict::refused;
  ++stream->capturing->nodes;
  stream->capturing->joined[stream] = false;
  return capture_verdict::recorded;
}

bool is_capturing(CUstream_st* stream) {
  const std::lock_guard lock(captures().mutex);
  return stream->capturing != nullptr;
}

int refuse_if_capturing(CUstream_st* stream) {
  const std::lock_guard lock(captures().mutex);
  return stream->capturing ? invalidate(*stream->capturing, cuda_error::capture_unsupported) : cuda_error::success;
}

int refuse_if_captured(CUevent_st* event) {
  const std::lock_guard lock(captures().mutex);
  return event->within ? invalidate(*event->within, cuda_error::captured_event) : cuda_error::success;
}

bool record_in_capture(CUevent_st* event, CUstream_st* stream) {
  const std::lock_guard lock(captures().mutex);
  event->within = stream->capturing;
  event->recorded_on = stream;
  return event->within != nullptr;
}

bool wait_in_capture(CUstream_st* stream, CUevent_st* event, int& error) {
  const std::lock_guard lock(captures().mutex);
  error = cuda_error::success;
  if (!event->within) {
    if (!stream->capturing) return false;
    if (event->captured) error = invalidate(*stream->capturing, cuda_error::capture_isolation);
    return true;
  }
  if (event->within->over) {
    error = cuda_error::invalid_value;
  } else if (!stream->capturing) {
    stream->capturing = event->within;
    stream->capturing->joined[stream] = false;
  } else if (stream->capturing != event->within) {
    error = invalidate(*stream->capturing, cuda_error::capture_isolation);
    invalidate(*event->within, cuda_error::capture_isolation);
  } else {
    event->within->joined[event->recorded_on] = true;
  }
  return true;
}

int begin_capture(CUstream_st* stream, capture_mode mode) {
  capture_list& all = captures();
  const std::lock_guard lock(all.mutex);
  if (stream->capturing) return invalidate(*stream->capturing, cuda_error::capture_unsupported);
  auto fresh = std::make_shared<capture>();
  fresh->mode = static_cast<int>(mode);
  fresh->thread = std::this_thread::get_id();
  fresh->origin = stream;
  stream->capturing = fresh;
  fresh->joined[stream] = true;
  all.active.push_back(std::move(fresh));
  return cuda_error::success;
}

captured_graph end_capture(CUstream_st* stream) {
  capture_list& all = captures();
  const std::lock_guard lock(all.mutex);
  const capture_ptr one = stream->capturing;
  if (!one || one->origin != stream) return {unmatched, 0};
  if (one->mode != static_cast<int>(capture_mode::relaxed) && one->thread != std::this_thread::get_id())
    return {wrong_thread, 0};
  one->over = true;
  std::erase(all.active, one);
  const bool all_joined = std::all_of(one->joined.begin(), one->joined.end(),
                                      [&](const auto& each) { return each.first == stream || each.second; });
  for (const auto& [member, joined] : one->joined) member->capturing = nullptr;
  const int status = one->invalid  ? cuda_error::capture_invalidated
                     : !all_joined ? cuda_error::capture_unjoined
                                   : cuda_error::success;
  return {status, one->nodes};
}

}  // namespace fake_cuda
