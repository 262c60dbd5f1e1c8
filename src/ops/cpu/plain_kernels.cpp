#include <cmath>

#include "../cpu_kernels.hpp"
#include "../plain_gemm.hpp"

namespace ferry::inline v0::detail {
namespace {

template <class T>
void plain_array(array_function function, const T* in, T* out, std::int64_t count) {
  switch (function) {
    case array_function::exp:
      for (std::int64_t i = 0; i != count; ++i) out[i] = std::exp(in[i]);
      return;
    case array_function::log:
      for (std::int64_t i = 0; i != count; ++i) out[i] = std::log(in[i]);
      return;
    case array_function::tanh:
      for (std::int64_t i = 0; i != count; ++i) out[i] = std::tanh(in[i]);
      return;
    case array_function::sigmoid:
      for (std::int64_t i = 0; i != count; ++i) out[i] = T{1} / (T{1} + std::exp(-in[i]));
      return;
  }
}

}  // namespace

const cpu_kernels plain_kernels = {"plain", &plain_gemm<float>, &plain_gemm<double>, &plain_array<float>,
                                   &plain_array<double>};

}  // namespace ferry::inline v0::detail
