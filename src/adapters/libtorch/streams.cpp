// Order between the current streams of ferry and libtorch, through libtorch's interface for all devices: no header of CUDA is
// needed, and the same library works with a libtorch that has CUDA and with one that has not. What libtorch calls an event
// of a CUDA device is a cudaEvent_t.

#include "streams.hpp"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <ferry/adapters/libtorch/tensor.hpp>
#include <ferry/base/error.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

const c10::impl::DeviceGuardImplInterface& torch_devices(const at::Device& where) {
  return *c10::impl::getDeviceGuardImpl(where.type());
}

}  // namespace

c10::Stream torch_stream(device where) {
  const at::Device there = to_torch(where);
  return torch_devices(there).getStream(there);
}

void wait_for_torch(const stream& waits, const c10::Stream& on) {
  // The event is one of ferry's, which goes back to ferry's pool; libtorch records it a second time.
  event mark = waits.record();
  void* handle = mark.native<cuda>();
  torch_devices(on.device()).record(&handle, on, on.device_index(), c10::EventFlag::PYTORCH_DEFAULT);
  waits.wait(mark);
}

void torch_waits_for(const stream& on, const c10::Stream& waits) {
  const event mark = on.record();
  torch_devices(waits.device()).block(mark.native<cuda>(), waits);
}

}  // namespace detail

void let_torch_wait(device where) {
  if (where.is_cpu()) return;
  detail::torch_waits_for(current_stream(where), detail::torch_stream(where));
}

void let_ferry_wait(device where) {
  if (where.is_cpu()) return;
  detail::wait_for_torch(current_stream(where), detail::torch_stream(where));
}

}  // namespace ferry::inline v0
