// Kernels of ferry as its own build compiles them, few enough to be read: by kernels_ptx_test.py as PTX, by gpu_launcher_test.cpp on a
// runtime that only notes what it is asked for.

#include "../../src/ops/kernels.hpp"
#include "../../src/optim/kernels.hpp"
#include "../../src/tensor/gpu_launcher.cuh"
#include "sample_kernels.hpp"

namespace sample {

using namespace ferry::detail;

int copy(const walk<2>& plan) { return launch_walk<gpu_launcher>(nullptr, copy_kernel<std::uint32_t>{plan}); }
int copy_wide(const walk<2>& plan) {
  return launch_walk<gpu_launcher>(nullptr, copy_kernel<aligned_sixteen_bytes>{plan});
}
int combine(const walk<3>& plan) {
  return launch_walk<gpu_launcher>(nullptr, combine_kernel<float>{plan, kernel_operation::add, 2});
}
int combine_packs(const walk<3>& plan) {
  return launch_walk<gpu_launcher>(nullptr, combine_packs_kernel<float>{plan, kernel_operation::add, 2});
}
int update(const walk<5>& plan) {
  return launch_walk<gpu_launcher>(nullptr, update_kernel<double, adam_update>{plan, adam_update{}});
}
int product(const gemm_call<float>& call) {
  return gpu_launcher::launch(nullptr, call.rows * call.columns, gemm_kernel<float>{call});
}

struct nothing {
  template <class Index>
  __host__ __device__ void operator()(Index) const {}
};
int launch_nothing(std::int64_t count) { return gpu_launcher::launch(nullptr, count, nothing()); }

}  // namespace sample
