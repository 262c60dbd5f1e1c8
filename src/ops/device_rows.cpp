#include "device_rows.hpp"

#include "../tensor/launch.hpp"
#include "device_arithmetic.hpp"
#include "kernels.hpp"
#include "rows.hpp"

namespace ferry::inline v0::detail {

void softmax_by_kernel(const tensor& to, const tensor& t, std::int64_t axis, bool logarithm) {
  const row_plan<2> plan = plan_rows<2>({&to, &t}, axis, t.size(axis));
  if (plan.outer.empty) return;
  launch_kernel({&to, &t}, [&](CUstream_st* on) { return kernels_in_use().softmax(on, plan, t.dtype(), logarithm); });
}

void softmax_gradient_by_kernel(const tensor& to, const tensor& gradient, const tensor& result, std::int64_t axis,
                                bool logarithm) {
  const row_plan<3> plan = plan_rows<3>({&to, &gradient, &result}, axis, to.size(axis));
  if (plan.outer.empty) return;
  launch_kernel({&to, &gradient, &result},
                [&](CUstream_st* on) { return kernels_in_use().softmax_gradient(on, plan, to.dtype(), logarithm); });
}

void logsumexp_by_kernel(const tensor& to, const tensor& t, std::int64_t axis) {
  const row_plan<2> plan = plan_rows<2>({&to, &t}, axis, t.size(axis));
  if (plan.outer.empty) return;
  launch_kernel({&to, &t}, [&](CUstream_st* on) { return kernels_in_use().logsumexp(on, plan, t.dtype()); });
}

void extreme_by_kernel(const tensor& values, const tensor& indices, const tensor& t, std::int64_t axis, bool largest) {
  const row_plan<3> plan = plan_rows<3>({&values, &indices, &t}, axis, t.size(axis));
  if (plan.outer.empty) return;
  launch_kernel({&values, &indices, &t},
                [&](CUstream_st* on) { return kernels_in_use().extreme(on, plan, t.dtype(), largest); });
}

void scatter_add_by_kernel(const tensor& to, const tensor& index, const tensor& source, std::int64_t axis) {
  const row_plan<3> plan = plan_scatter(to, index, source, axis);
  if (plan.outer.empty) return;
  launch_kernel({&to, &index, &source},
                [&](CUstream_st* on) { return kernels_in_use().scatter_add(on, plan, to.dtype(), to.size(axis)); });
}

void gather_by_kernel(const tensor& to, const tensor& index, const tensor& from, std::int64_t places,
                      std::int64_t step) {
  const walk<3> plan = plan_walk<3>({&to, &index, &from});
  if (plan.empty) return;
  launch_kernel({&to, &index, &from}, [&](CUstream_st* on) {
    return kernels_in_use().gather(on, plan, dtype_size(to.dtype()), places, step);
  });
}

}  // namespace ferry::inline v0::detail
