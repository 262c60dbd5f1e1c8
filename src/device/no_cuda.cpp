#include <ferry/device/cuda.hpp>

namespace ferry::inline v0 {

// A build without the CUDA Toolkit.
int device_traits<cuda>::count() noexcept { return 0; }

}  // namespace ferry::inline v0
