// The layer above the double: its sources and this one are compiled with another name for the namespace fake_cuda.

#include <thread>

#include "lower.hpp"

#include "../fake_cuda/fake_cuda.hpp"

namespace fake_cuda {

const ferry::detail::cuda_runtime& runtime_of_double();
const ferry::detail::tensor_kernels& tensor_kernels_of_double();
const ferry::detail::arithmetic_kernels& arithmetic_kernels_of_double();

}  // namespace fake_cuda

namespace real_cuda {
namespace {

struct until {
  const volatile std::uint32_t* flag;
  std::uint32_t ticket;
};

void spin(void* argument) {
  auto* const what = static_cast<until*>(argument);
  while (__atomic_load_n(what->flag, __ATOMIC_ACQUIRE) < what->ticket) std::this_thread::yield();
  delete what;
}

}  // namespace

// One device with the memory of several, on which the layer shows eight.
const ferry::detail::cuda_runtime* lower_runtime() {
  static const ferry::detail::cuda_runtime one = [] {
    fake_cuda::set_memory(std::size_t{1} << 29);
    ferry::detail::cuda_runtime made = fake_cuda::runtime_of_double();
    made.get_device_count = [](int* count) -> ferry::detail::cuda_status {
      *count = 1;
      return ferry::detail::cuda_error::success;
    };
    return made;
  }();
  return &one;
}
const ferry::detail::tensor_kernels* lower_tensor_kernels() { return &fake_cuda::tensor_kernels_of_double(); }
const ferry::detail::arithmetic_kernels* lower_arithmetic_kernels() {
  return &fake_cuda::arithmetic_kernels_of_double();
}

int hold_stream(CUstream_st* stream, const volatile std::uint32_t* flag, std::uint32_t ticket) {
  return lower_runtime()->launch_host_func(stream, &spin, new until{flag, ticket});
}

}  // namespace real_cuda
