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
const arithmetic_kernels& kernels_in_use() noexcept { return *arithmetic_table.in_use(); }

void combine_by_kernel(const tensor& to, const tensor& a, const tensor& b, kernel_operation how, kernel_number factor) {
  const walk<3> plan = plan_walk<3>({&to, &a, &b});
  if (plan.empty) return;
  launch_kernel({&to, &a, &b},
                [&](CUstream_st* on) { return kernels_in_use().combine(on, plan, to.dtype(), how, factor); });
}

void combine_by_kernel(const tensor& to, const tensor& a, kernel_operation how, kernel_number value) {
  const walk<2> plan = plan_walk<2>({&to, &a});
  if (plan.empty) return;
  launch_kernel({&to, &a},
                [&](CUstream_st* on) { return kernels_in_use().combine_number(on, plan, to.dtype(), how, value); });
}

void function_by_kernel(const tensor& to, const tensor& a, unary_function f, const function_numbers& with) {
  const walk<2> plan = plan_walk<2>({&to, &a});
  if (plan.empty) return;
  launch_kernel({&to, &a}, [&](CUstream_st* on) { return kernels_in_use().function(on, plan, to.dtype(), f, with); });
}

void function_gradient_by_kernel(const tensor& to, const tensor& gradient, const tensor& from, unary_function f,
                                 const function_numbers& with) {
  const walk<3> plan = plan_walk<3>({&to, &gradient, &from});
  if (plan.empty) return;
  launch_kernel({&to, &gradient, &from},
                [&](CUstream_st* on) { return kernels_in_use().function_gradient(on, plan, to.dtype(), f, with); });
}

void function_by_kernel(const tensor& to, const tensor& a, const tensor& b, binary_function f) {
  const walk<3> plan = plan_walk<3>({&to, &a, &b});
  if (plan.empty) return;
  launch_kernel({&to, &a, &b}, [&](CUstream_st* on) { return kernels_in_use().pair(on, plan, to.dtype(), f); });
}

void function_gradient_by_kernel(const tensor& to, const tensor& gradient, const tensor& a, const tensor& b,
                                 binary_function f, std::size_t input) {
  const walk<4> plan = plan_walk<4>({&to, &gradient, &a, &b});
  if (plan.empty) return;
  launch_kernel({&to, &gradient, &a, &b},
                [&](CUstream_st* on) { return kernels_in_use().pair_gradient(on, plan, to.dtype(), f, input); });
}

void compare_by_kernel(const tensor& to, const tensor& a, const tensor& b, comparison how) {
  const walk<3> plan = plan_walk<3>({&to, &a, &b});
  if (plan.empty) return;
  launch_kernel({&to, &a, &b}, [&](CUstream_st* on) { return kernels_in_use().compare(on, plan, a.dtype(), how); });
}

void choose_by_kernel(const tensor& to, const tensor& condition, const tensor& a, const tensor& b) {
  const walk<4> plan = plan_walk<4>({&to, &condition, &a, &b});
  if (plan.empty) return;
  launch_kernel({&to, &condition, &a, &b},
                [&](CUstream_st* on) { return kernels_in_use().choose(on, plan, dtype_size(to.dtype())); });
}

void sum_by_kernel(const tensor& to, const tensor& first, const tensor& reduced) {
  const walk<2> plan = plan_walk<2>({&to, &first});
  if (plan.empty) return;
  launch_kernel({&to, &first}, [&](CUstream_st* on) {
    return kernels_in_use().sum(on, plan, plan_walk<1>({&reduced}), first.dtype());
  });
}

}  // namespace ferry::inline v0::detail
