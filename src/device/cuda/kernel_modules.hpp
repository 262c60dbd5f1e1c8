#pragma once

// Which kernels there are. CUDA loads a kernel when it is first started, unless told otherwise (CUDA_MODULE_LOADING), and
// waits for the whole device meanwhile: a kernel on another stream that waits for the host then never ends. So the
// launchers note each kernel while the program starts, and warming up a device loads them.

#include <ferry/device/device.hpp>

namespace ferry::inline v0::detail {

/// Notes a kernel by its entry point. Called before main(). Returns true.
bool note_kernel(const void* entry) noexcept;

/// Loads all kernels for the device. Throws errc::device_failure.
void load_kernels(device where);

}  // namespace ferry::inline v0::detail
