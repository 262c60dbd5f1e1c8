#pragma once

// Captures of the double: graphs are not kept, only counted.

#include "executor.hpp"
#include "fake_cuda.hpp"

namespace fake_cuda {

/// Exchanges the calling thread's mode; returns the former one.
int exchange_capture_mode(int mode);
/// A call that allocates, creates or asks. Invalidates the captures that it disturbs; returns the error, or success.
int check_unsafe_call();
/// What happens to work that is queued on the stream.
enum class capture_verdict : std::uint8_t {
  none,      ///< it is not being captured: the work is queued
  recorded,  ///< the work is part of a graph
  refused,   ///< its capture has been invalidated
};
capture_verdict record_node(CUstream_st* stream);
bool is_capturing(CUstream_st* stream);
/// If the stream is being captured, the capture is invalidated, and the result is an error.
int refuse_if_capturing(CUstream_st* stream);
/// The same for an event that was recorded in a capture.
int refuse_if_captured(CUevent_st* event);
/// Whether the event becomes part of the stream's capture.
bool record_in_capture(CUevent_st* event, CUstream_st* stream);
/// A stream waits for an event, where one of them is part of a capture: true, and `error` is the result. Else false.
bool wait_in_capture(CUstream_st* stream, CUevent_st* event, int& error);

}  // namespace fake_cuda
