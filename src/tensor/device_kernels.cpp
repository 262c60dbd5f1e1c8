#include "device_kernels.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/config.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/current.hpp>

#include "../base/replaceable_table.hpp"
#include "../device/cuda/cuda_scope.hpp"

namespace ferry::inline v0::detail {

#if !FERRY_WITH_CUDA_KERNELS
// Without kernels.cu: strided copies and conversions on CUDA devices go through the host.
const tensor_kernels* linked_tensor_kernels() noexcept { return nullptr; }
#endif

namespace {

constinit replaceable_table<tensor_kernels, &linked_tensor_kernels> kernel_table;

// Starts a kernel: start(table, stream) on the device of the tensors, whose current stream is recorded as a user of
// them.
template <class Start>
void launch(std::initializer_list<const tensor*> tensors, Start start) {
  const device where = (*tensors.begin())->device();
  const stream on = current_stream(where);
  for (const tensor* each : tensors) each->storage().record_use(on);
  const cuda_scope scope(where);
  check_cuda(start(*kernel_table.in_use(), on.native<cuda>()), where, "start a kernel");
}

}  // namespace

void use_tensor_kernels(const tensor_kernels* kernels) noexcept { kernel_table.replace(kernels); }

bool has_kernels(device where) noexcept { return where.is_cuda() && kernel_table.in_use() != nullptr; }

void need_arithmetic(const tensor& t, std::string_view operation) {
  if (t.device().is_cpu() || has_kernels(t.device())) return;
  throw_error(errc::bad_device,
              fmt::format("{} works on tensors of the CPU and of CUDA devices{}; this one is on {}: move "
                          "it with to(ferry::device{{}})",
                          operation, t.device().is_cuda() ? ", for which this ferry was built without kernels" : "",
                          to_string(t.device())));
}

void copy_by_kernel(const tensor& from, const tensor& to) {
  const walk<2> plan = plan_walk<2>({&to, &from});
  if (plan.empty) return;
  launch({&to, &from}, [&](const tensor_kernels& kernels, CUstream_st* on) {
    return from.dtype() == to.dtype() ? kernels.copy(on, plan, dtype_size(to.dtype()))
                                      : kernels.convert(on, plan, to.dtype(), from.dtype());
  });
}

void fill_by_kernel(const tensor& t, const element_bytes& value) {
  const walk<1> plan = plan_walk<1>({&t});
  if (plan.empty) return;
  kernel_element element{};
  std::copy(value.bytes.begin(), value.bytes.end(), element.bytes);
  launch({&t}, [&](const tensor_kernels& kernels, CUstream_st* on) {
    return kernels.fill(on, plan, element, dtype_size(t.dtype()));
  });
}

void combine_by_kernel(const tensor& to, const tensor& a, const tensor& b, kernel_operation how, kernel_number factor) {
  const walk<3> plan = plan_walk<3>({&to, &a, &b});
  if (plan.empty) return;
  launch({&to, &a, &b}, [&](const tensor_kernels& kernels, CUstream_st* on) {
    return kernels.combine(on, plan, to.dtype(), how, factor);
  });
}

void combine_by_kernel(const tensor& to, const tensor& a, kernel_operation how, kernel_number value) {
  const walk<2> plan = plan_walk<2>({&to, &a});
  if (plan.empty) return;
  launch({&to, &a}, [&](const tensor_kernels& kernels, CUstream_st* on) {
    return kernels.combine_number(on, plan, to.dtype(), how, value);
  });
}

}  // namespace ferry::inline v0::detail
