#pragma once

// Calls of the CUDA runtime on the right device, with failures turned into errors.

#include <new>
#include <string_view>

#include <ferry/device/device.hpp>

#include "cuda_runtime.hpp"

namespace ferry::inline v0::detail {

/// The runtime. Throws errc::bad_device if there is none.
const cuda_runtime& need_cuda_runtime();

/// Throws errc::device_failure unless `status` is success; `attempt` completes "cannot ...". Clears the runtime's last
/// error, so that the user's own code does not find it. If the device does not recover from the error, it is fenced.
void check_cuda(cuda_status status, device where, std::string_view attempt);

/// Fences the device if this is an error that it does not recover from: logs it, once, and has every later cuda_scope of
/// the device fail with it. For callers that must not throw.
void note_cuda_failure(cuda_status status, device where, std::string_view attempt) noexcept;

/// The error with which the device has been fenced, else success.
cuda_status cuda_fence_of(device where) noexcept;

/// Lifts all fences, for tests that mend a device.
void lift_cuda_fences() noexcept;

/// While one exists, the thread's calls may be made although a graph is being captured: on another thread in the global
/// mode, where calls that allocate, create or ask would invalidate the capture. Allowed since these calls do not concern
/// the captured streams.
class relaxed_captures {
 public:
  /// Null: no effect.
  explicit relaxed_captures(const cuda_runtime* runtime) noexcept : runtime_(runtime) {
    if (runtime_ && runtime_->thread_exchange_stream_capture_mode(&mode_) != cuda_error::success) runtime_ = nullptr;
  }
  relaxed_captures(const relaxed_captures&) = delete;
  relaxed_captures& operator=(const relaxed_captures&) = delete;
  ~relaxed_captures() {
    if (runtime_) static_cast<void>(runtime_->thread_exchange_stream_capture_mode(&mode_));
  }

 private:
  const cuda_runtime* runtime_;
  cuda_capture_mode mode_ = cuda_capture_mode::relaxed;  // then the thread's former one
};

/// Makes the device the thread's current one during its lifetime, in the relaxed capture mode. Every runtime call that
/// concerns a device is made inside one: the current device is thread state, and a stray call creates a context on
/// device 0.
class cuda_scope {
 public:
  /// Throws errc::bad_device, errc::device_failure.
  explicit cuda_scope(device where);
  /// For callers that must not throw: runtime() is null if the device cannot be made current, or has been fenced.
  cuda_scope(device where, std::nothrow_t) noexcept;
  cuda_scope(const cuda_scope&) = delete;
  cuda_scope& operator=(const cuda_scope&) = delete;
  ~cuda_scope();

  const cuda_runtime* operator->() const noexcept { return runtime_; }
  [[nodiscard]] const cuda_runtime* runtime() const noexcept { return runtime_; }

 private:
  cuda_status enter(int index) noexcept;

  const cuda_runtime* runtime_;
  relaxed_captures relaxed_;
  int former_ = -1;  // the device to restore
};

/// Makes a thread's former device current again; not if it has no context, since that would create one.
void restore_cuda_device(const cuda_runtime& runtime, int former) noexcept;

}  // namespace ferry::inline v0::detail
