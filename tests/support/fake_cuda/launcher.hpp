#pragma once

// How kernels are started on the double. A floor above ops/ that has kernels makes its table with host_launcher, and installs
// that before main() in its test program.

#include <cstdint>
#include <functional>

struct CUstream_st;

namespace fake_cuda {

/// Queues a kernel on the stream, of the current device, as cudaLaunchKernel does; returns a cudaError_t.
int start_kernel(CUstream_st* stream, std::function<void()> kernel);

struct host_launcher {
  template <class F, class Index>
  static int launch(CUstream_st* stream, Index count, const F& kernel) {
    return start_kernel(stream, [kernel, count] {
      for (Index i = 0; i != count; ++i) kernel(i);
    });
  }
};

}  // namespace fake_cuda
