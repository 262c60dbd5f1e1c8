#include <ferry/device/cuda.hpp>

#include <string>

#include <cuda_runtime_api.h>

#include <ferry/base/log.hpp>

namespace ferry::inline v0 {
namespace {

int ask_for_devices() noexcept {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count;
  // The runtime keeps the last error for whoever asks next: it must not be found by the user's own code.
  static_cast<void>(cudaGetLastError());
  if (log_enabled(log_level::info)) {
    log(log_level::info, std::string("no CUDA devices: ") + cudaGetErrorString(status));
  }
  return 0;
}

}  // namespace

int device_traits<cuda>::count() noexcept {
  static const int devices = ask_for_devices();
  return devices;
}

}  // namespace ferry::inline v0
