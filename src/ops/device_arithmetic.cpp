#include "device_arithmetic.hpp"

#include <ferry/config.hpp>

#include "../base/replaceable_table.hpp"
#include "../tensor/launch.hpp"
#include "../tensor/layout.hpp"

namespace ferry::inline v0::detail {

#if !FERRY_WITH_CUDA_KERNELS
const arithmetic_kernels* linked_arithmetic_kernels() noexcept { return nullptr; }
#endif

namespace {

constinit replaceable_table<arithmetic_kernels, &linked_arithmetic_kernels> arithmetic_table;

}  // namespace

void use_arithmetic_kernels(const arithmetic_kernels* kernels) noexcept { arithmetic_table.replace(kernels); }

void combine_by_kernel(const tensor& to, const tensor& a, const tensor& b, kernel_operation how, kernel_number factor) {
  const walk<3> plan = plan_walk<3>({&to, &a, &b});
  if (plan.empty) return;
  launch_kernel({&to, &a, &b},
                [&](CUstream_st* on) { return arithmetic_table.in_use()->combine(on, plan, to.dtype(), how, factor); });
}

void combine_by_kernel(const tensor& to, const tensor& a, kernel_operation how, kernel_number value) {
  const walk<2> plan = plan_walk<2>({&to, &a});
  if (plan.empty) return;
  launch_kernel({&to, &a}, [&](CUstream_st* on) {
    return arithmetic_table.in_use()->combine_number(on, plan, to.dtype(), how, value);
  });
}

void sum_by_kernel(const tensor& to, const tensor& first, const tensor& reduced) {
  const walk<2> plan = plan_walk<2>({&to, &first});
  if (plan.empty) return;
  launch_kernel({&to, &first}, [&](CUstream_st* on) {
    return arithmetic_table.in_use()->sum(on, plan, plan_walk<1>({&reduced}), first.dtype());
  });
}

}  // namespace ferry::inline v0::detail
