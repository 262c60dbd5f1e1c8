#pragma once

// How kernels are started on the double. A floor above ops/ that has kernels makes its table with host_launcher, and installs
// that before main() in its test program.

#include <cstdint>
#include <functional>

#include <device/cuda/kernel_modules.hpp>

struct CUstream_st;

namespace fake_cuda {

/// Queues a kernel on the stream, of the current device, as cudaLaunchKernel does; returns a cudaError_t. The first start of
/// an `entry` on a device loads it, which is a creation.
int start_kernel(CUstream_st* stream, std::function<void()> kernel, const void* entry = nullptr);

/// The entry point of a kernel, noted as those of a GPU are.
template <class F, class Index>
struct kernel_entry {
  static inline const char place = 0;
  static const bool noted;
};
template <class F, class Index>
const bool kernel_entry<F, Index>::noted = ferry::detail::note_kernel(&kernel_entry<F, Index>::place);

struct host_launcher {
  template <class F, class Index>
  static int launch(CUstream_st* stream, Index count, const F& kernel) {
    static_cast<void>(kernel_entry<F, Index>::noted);
    return start_kernel(
        stream,
        [kernel, count] {
          for (Index i = 0; i != count; ++i) kernel(i);
        },
        &kernel_entry<F, Index>::place);
  }
};

}  // namespace fake_cuda
