#pragma once

// Starting a kernel on tensors.

#include <initializer_list>

#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>
#include <ferry/tensor/tensor.hpp>

#include "../device/cuda/cuda_scope.hpp"
#include "../device/device_work.hpp"

namespace ferry::inline v0::detail {

/// Calls start(stream), which starts a kernel and returns a cudaError_t, on the device of the tensors; its current stream
/// is recorded as a user of them. Throws errc::device_failure.
template <class Start>
void launch_kernel(std::initializer_list<const tensor*> tensors, Start start) {
  const device where = (*tensors.begin())->device();
  const stream on = current_stream(where);
  for (const tensor* each : tensors) each->storage().record_use(on);
  device_work_begins(on);
  const cuda_scope scope(where);
  check_cuda(start(on.native<cuda>()), where, "start a kernel");
}

}  // namespace ferry::inline v0::detail
