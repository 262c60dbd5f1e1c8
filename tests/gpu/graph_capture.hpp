#pragma once

struct CUstream_st;

namespace gpu_test {

/// Whether this runtime captures.
bool can_capture();
/// From now on what the stream is given becomes a graph: in CUDA's default mode, in which an unsafe call of any thread ends it.
void begin_capture(CUstream_st* stream);
/// Ends it; returns how many nodes the graph has, or minus the cudaError_t that ended it earlier.
int end_capture(CUstream_st* stream);

}  // namespace gpu_test
