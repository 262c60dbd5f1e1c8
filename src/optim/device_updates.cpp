#include <ferry/config.hpp>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../base/replaceable_table.hpp"
#include "../tensor/launch.hpp"
#include "apply.hpp"
#include "norms.hpp"

namespace ferry::inline v0::detail {

#if !FERRY_WITH_CUDA_KERNELS
const optimizer_kernels* linked_optimizer_kernels() noexcept { return nullptr; }
#endif

namespace {

constinit replaceable_table<optimizer_kernels, &linked_optimizer_kernels> optimizer_table;

const optimizer_kernels& kernels_for(const tensor& t) {
  const optimizer_kernels* const table = optimizer_table.in_use();
  if (table) return *table;
  throw_error(errc::bad_device,
              fmt::format("this ferry was built without kernels of optimizers: parameters cannot be on {}",
                          to_string(t.device())));
}

}  // namespace

void use_optimizer_kernels(const optimizer_kernels* kernels) noexcept { optimizer_table.replace(kernels); }

template <class Update>
void start_update(const update_operands& on, const Update& update) {
  const update_kernel_of<Update>& kernel = kernels_for(*on[0]);
  const update_walk plan = plan_walk<5>(on);
  if (plan.empty) return;
  launch_kernel({on[0], on[1], on[2], on[3], on[4]},
                [&](CUstream_st* stream) { return kernel.start(stream, plan, on[0]->dtype(), update); });
}
template void start_update(const update_operands&, const sgd_update&);
template void start_update(const update_operands&, const adam_update&);
template void start_update(const update_operands&, const adagrad_update&);
template void start_update(const update_operands&, const ftrl_update&);
template void start_update(const update_operands&, const rmsprop_update&);
template void start_update(const update_operands&, const adadelta_update&);
template void start_update(const update_operands&, const adamax_update&);
template void start_update(const update_operands&, const rprop_update&);
template void start_update(const update_operands&, const clip_update&);
template void start_update(const update_operands&, const rescale_update&);

template <class Update>
void start_rows(const update_operands& on, const update_rows_plan& plan, const tensor& lists, const Update& update) {
  const rows_kernel_of<Update>& kernel = kernels_for(*on[0]);
  launch_kernel({on[0], on[1], on[2], on[3], on[4], lists.defined() ? &lists : on[0]},
                [&](CUstream_st* stream) { return kernel.start(stream, plan, on[0]->dtype(), update); });
}
template void start_rows(const update_operands&, const update_rows_plan&, const tensor&, const sgd_update&);
template void start_rows(const update_operands&, const update_rows_plan&, const tensor&, const adam_update&);
template void start_rows(const update_operands&, const update_rows_plan&, const tensor&, const adagrad_update&);
template void start_rows(const update_operands&, const update_rows_plan&, const tensor&, const row_wise_update&);

void start_square_sums(const tensor& t, const tensor& parts) {
  const optimizer_kernels& kernels = kernels_for(t);
  const walk<1> plan = plan_walk<1>({&t});
  launch_kernel({&t, &parts}, [&](CUstream_st* stream) {
    return kernels.square_sums(stream, plan, t.dtype(), parts.data<double>());
  });
}

void start_norm(const tensor& parts, const tensor& norm) {
  const optimizer_kernels& kernels = kernels_for(parts);
  launch_kernel({&parts, &norm}, [&](CUstream_st* stream) {
    return kernels.norm(stream, parts.data<double>(), parts.numel(), norm.data<double>());
  });
}

}  // namespace ferry::inline v0::detail
