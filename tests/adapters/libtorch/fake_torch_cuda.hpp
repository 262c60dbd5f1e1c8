#pragma once

// CUDA devices of libtorch on the fake CUDA runtime: a libtorch without CUDA learns of devices, their streams and events, as one
// with CUDA registers them. It has no kernels for them; work_on() stands for one.

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/stream.hpp>

namespace libtorch_test {

constexpr int devices = 8;

/// Numbers of streams: 0 is the default one of a device.
class fake_streams {
 public:
  static fake_streams& instance() {
    static fake_streams all;
    return all;
  }
  CUstream_st* handle(const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    return stream.id() == 0 ? cuda::default_stream(where(stream.device_index()))
                            : made_.at(static_cast<std::size_t>(stream.id() - 1));
  }
  c10::Stream make(int device) {
    const std::lock_guard lock(mutex_);
    made_.push_back(cuda::create_stream(where(device)));
    return c10::Stream(c10::Stream::UNSAFE, {c10::kCUDA, static_cast<c10::DeviceIndex>(device)},
                       static_cast<c10::StreamId>(made_.size()));
  }

 private:
  using cuda = ferry::device_traits<ferry::cuda>;
  static ferry::device where(int index) { return {ferry::device_kind::cuda, index}; }
  std::mutex mutex_;
  std::vector<CUstream_st*> made_;
};

inline std::array<c10::StreamId, devices>& current_ids() {
  thread_local std::array<c10::StreamId, devices> ids{};
  return ids;
}

class fake_cuda_guard final : public c10::impl::DeviceGuardImplInterface {
  using cuda = ferry::device_traits<ferry::cuda>;
  static CUstream_st* handle(const c10::Stream& stream) { return fake_streams::instance().handle(stream); }

 public:
  [[nodiscard]] c10::DeviceType type() const override { return c10::kCUDA; }
  [[nodiscard]] c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device former = getDevice();
    setDevice(to);
    return former;
  }
  [[nodiscard]] c10::Device getDevice() const override {
    return {c10::kCUDA, static_cast<c10::DeviceIndex>(cuda::current())};
  }
  void setDevice(c10::Device to) const override { cuda::make_current(to.index()); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { cuda::make_current(to.index()); }
  [[nodiscard]] c10::Stream getStream(c10::Device of) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, of, current_ids().at(static_cast<std::size_t>(of.index())));
  }
  [[nodiscard]] c10::Stream getDefaultStream(c10::Device of) const override {
    return c10::Stream(c10::Stream::DEFAULT, of);
  }
  c10::Stream exchangeStream(c10::Stream now) const noexcept override {
    const c10::Stream former = getStream(now.device());
    current_ids().at(static_cast<std::size_t>(now.device_index())) = now.id();
    return former;
  }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override { return devices; }
  void record(void** event, const c10::Stream& on, c10::DeviceIndex device, c10::EventFlag) const override {
    const ferry::device where{ferry::device_kind::cuda, device};
    if (*event == nullptr) *event = cuda::create_event(where);
    cuda::record_event(where, static_cast<CUevent_st*>(*event), handle(on));
  }
  void block(void* event, const c10::Stream& waits) const override {
    if (event == nullptr) return;
    cuda::wait_event({ferry::device_kind::cuda, waits.device_index()}, handle(waits), static_cast<CUevent_st*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex device) const noexcept override {
    if (event != nullptr) cuda::destroy_event({ferry::device_kind::cuda, device}, static_cast<CUevent_st*>(event));
  }
};

/// ferry's name for a stream of libtorch.
inline ferry::stream as_ferry(const c10::Stream& stream) {
  return ferry::stream::from_native<ferry::cuda>(fake_streams::instance().handle(stream), stream.device_index());
}

}  // namespace libtorch_test
