#include "hold.hpp"
#include "lower.hpp"

namespace real_cuda {

const ferry::detail::cuda_runtime* lower_runtime() { return ferry::detail::linked_cuda_runtime(); }
const ferry::detail::tensor_kernels* lower_tensor_kernels() { return ferry::detail::linked_tensor_kernels(); }
const ferry::detail::arithmetic_kernels* lower_arithmetic_kernels() {
  return ferry::detail::linked_arithmetic_kernels();
}

int hold_stream(CUstream_st* stream, const volatile std::uint32_t* flag, std::uint32_t ticket) {
  return hold_stream_by_kernel(stream, flag, ticket);
}

}  // namespace real_cuda
