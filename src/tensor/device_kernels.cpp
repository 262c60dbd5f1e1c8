#include "device_kernels.hpp"

#include <algorithm>

#include <ferry/config.hpp>

#include "../base/replaceable_table.hpp"
#include "launch.hpp"

namespace ferry::inline v0::detail {

#if !FERRY_WITH_CUDA_KERNELS
// Without kernels.cu: strided copies and conversions on CUDA devices go through the host.
const tensor_kernels* linked_tensor_kernels() noexcept { return nullptr; }
#endif

namespace {

constinit replaceable_table<tensor_kernels, &linked_tensor_kernels> kernel_table;

}  // namespace

void use_tensor_kernels(const tensor_kernels* kernels) noexcept { kernel_table.replace(kernels); }

bool has_kernels(device where) noexcept { return where.is_cuda() && kernel_table.in_use() != nullptr; }

void copy_by_kernel(const tensor& from, const tensor& to) {
  const walk<2> plan = plan_walk<2>({&to, &from});
  if (plan.empty) return;
  launch_kernel({&to, &from}, [&](CUstream_st* on) {
    const tensor_kernels& kernels = *kernel_table.in_use();
    return from.dtype() == to.dtype() ? kernels.copy(on, plan, dtype_size(to.dtype()))
                                      : kernels.convert(on, plan, to.dtype(), from.dtype());
  });
}

void fill_by_kernel(const tensor& t, const element_bytes& value) {
  const walk<1> plan = plan_walk<1>({&t});
  if (plan.empty) return;
  kernel_element element{};
  std::copy(value.bytes.begin(), value.bytes.end(), element.bytes);
  launch_kernel({&t}, [&](CUstream_st* on) {
    const tensor_kernels& kernels = *kernel_table.in_use();
    return kernels.fill(on, plan, element, dtype_size(t.dtype()));
  });
}

}  // namespace ferry::inline v0::detail
