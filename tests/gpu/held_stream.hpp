#pragma once

// A stream that is held on the device: by a kernel on a GPU, by a function of the host on the double.

#include <atomic>
#include <cstdint>
#include <stdexcept>

#include <device/cuda/cuda_runtime.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/device/traits.hpp>

namespace gpu_test {

/// See tests/support/real_cuda/lower.hpp.
int start_hold(CUstream_st* stream, const volatile std::uint32_t* flag, std::uint32_t ticket);

/// What the stream is given after this is begun only after release().
class held_stream {
 public:
  explicit held_stream(const ferry::stream& on) {
    flag_ = static_cast<std::uint32_t*>(
        ferry::operations_of(on.device().kind).allocate_staging(on.device(), sizeof(std::uint32_t)));
    *flag_ = 0;
    const ferry::device_guard current(on.device());
    if (const int status = start_hold(on.native<ferry::cuda>(), flag_, 1)) {
      throw std::runtime_error("a kernel that spins cannot be started: CUDA error " + std::to_string(status));
    }
    end_ = on.record();
    where_ = on.device();
  }
  held_stream(const held_stream&) = delete;
  held_stream& operator=(const held_stream&) = delete;
  ~held_stream() {
    release();
    end_.synchronize();
    ferry::operations_of(where_.kind).deallocate_staging(where_, flag_, sizeof(std::uint32_t));
  }
  void release() noexcept { __atomic_store_n(flag_, 1U, __ATOMIC_RELEASE); }
  [[nodiscard]] bool released() const { return end_.done(); }

 private:
  std::uint32_t* flag_ = nullptr;  // page-locked
  ferry::event end_;
  ferry::device where_;
};

}  // namespace gpu_test
