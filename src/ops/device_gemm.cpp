#include "device_gemm.hpp"

#include <cstdint>
#include <type_traits>

#include "../tensor/launch.hpp"
#include "cublas.hpp"
#include "kernels.hpp"

namespace ferry::inline v0::detail {

template <class T>
void multiply_on_device(const gemm_call<T>& call, const tensor& result, const tensor& a, const tensor& b) {
  launch_kernel({&result, &a, &b}, [&](CUstream_st* on) {
    if constexpr (std::is_floating_point_v<T>) {
      if (cublas_takes(call)) return start_cublas_gemm(result.device(), on, call);
    }
    return kernels_in_use().gemm(on, result.dtype(), &call);
  });
}

template void multiply_on_device(const gemm_call<std::int32_t>&, const tensor&, const tensor&, const tensor&);
template void multiply_on_device(const gemm_call<std::int64_t>&, const tensor&, const tensor&, const tensor&);
template void multiply_on_device(const gemm_call<float>&, const tensor&, const tensor&, const tensor&);
template void multiply_on_device(const gemm_call<double>&, const tensor&, const tensor&, const tensor&);

}  // namespace ferry::inline v0::detail
