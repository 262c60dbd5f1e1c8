#pragma once

// Kernels that only tests have (hold.cu).

#include <cstdint>

struct CUstream_st;

namespace real_cuda {

/// Starts a kernel of one thread that spins until `*flag` is `ticket` or more; it gives up after two minutes, so that a test that
/// hangs never takes the GPU from others for good. Returns a cudaError_t.
int hold_stream_by_kernel(CUstream_st* stream, const volatile std::uint32_t* flag, std::uint32_t ticket);

}  // namespace real_cuda
