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
/// error, so that the user's own code does not find it.
void check_cuda(cuda_status status, device where, std::string_view attempt);

/// Makes the device the thread's current one during its lifetime. Every runtime call that concerns a device is made
/// inside one: the current device is thread state, and a stray call creates a context on device 0.
class cuda_scope {
 public:
  /// Throws errc::bad_device, errc::device_failure.
  explicit cuda_scope(device where);
  /// For callers that must not throw: runtime() is null if the device cannot be made current.
  cuda_scope(device where, std::nothrow_t) noexcept;
  cuda_scope(const cuda_scope&) = delete;
  cuda_scope& operator=(const cuda_scope&) = delete;
  ~cuda_scope();

  const cuda_runtime* operator->() const noexcept { return runtime_; }
  [[nodiscard]] const cuda_runtime* runtime() const noexcept { return runtime_; }

 private:
  cuda_status enter(int index) noexcept;

  const cuda_runtime* runtime_;
  int former_ = -1;  // the device to restore
};

/// Makes a thread's former device current again; not if it has no context, since that would create one.
void restore_cuda_device(const cuda_runtime& runtime, int former) noexcept;

}  // namespace ferry::inline v0::detail
