#pragma once

// Calls of the CUDA runtime: on the right device, and with their failures turned into errors.

#include <new>
#include <string_view>

#include <ferry/device/device.hpp>

#include "cuda_runtime.hpp"

namespace ferry::inline v0::detail {

/// The runtime. Throws errc::bad_device if there is none.
const cuda_runtime& need_cuda_runtime();

/// Throws errc::device_failure unless `status` is success; `attempt` completes "cannot ...". The runtime's last error is
/// cleared: it must not be found by the user's own code.
void check_cuda(cuda_status status, device where, std::string_view attempt);

/// The device is the thread's current one while this lives. Every call of the runtime that is about a device is made inside
/// of one: the current device is the state of a thread, and a stray call creates a context on device 0.
class cuda_scope {
 public:
  /// Throws errc::bad_device, errc::device_failure.
  explicit cuda_scope(device where);
  /// For those that must not throw: runtime() is null if the device cannot be made current.
  cuda_scope(device where, std::nothrow_t) noexcept;
  cuda_scope(const cuda_scope&) = delete;
  cuda_scope& operator=(const cuda_scope&) = delete;
  ~cuda_scope();

  const cuda_runtime* operator->() const noexcept { return runtime_; }
  [[nodiscard]] const cuda_runtime* runtime() const noexcept { return runtime_; }

 private:
  cuda_status enter(int index) noexcept;

  const cuda_runtime* runtime_;
  int former_ = -1;  // to go back to
};

/// Makes a device of a thread current again that was before; not if it has no context, since that would create one.
void restore_cuda_device(const cuda_runtime& runtime, int former) noexcept;

}  // namespace ferry::inline v0::detail
