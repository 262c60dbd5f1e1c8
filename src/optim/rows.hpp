#pragma once

// Updates of some rows of a parameter: those that a batch has looked up in a table of embeddings.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ferry/tensor/tensor.hpp>

#include "apply.hpp"

namespace ferry::inline v0::detail {

/// Which rows are updated, each once, and which gradients each has.
struct chosen_rows {
  std::int64_t count = 0;
  tensor lists;  // rows, begins, gradients of update_rows_plan, one after the other, on the parameter's device
};

/// Checks the arguments of an update_rows(), and brings equal indices together, in the order in which they come. Indices on a
/// device are read by the host, which waits for them.
chosen_rows choose_rows(std::string_view algorithm, const tensor& parameter, const tensor& indices,
                        const tensor& values);

/// Of these rows, or without `chosen` of all. The operands have the parameter's rank; a kept one may have one axis, its rows.
update_rows_plan plan_rows(const update_operands& on, const chosen_rows* chosen);

// One row whose elements lie at one step, which those of tables do.
template <class T, class Update>
void row_on_host(const update_rows_plan& plan, std::int64_t n, const Update& update) {
  const std::array<std::int64_t, 5> step = plan.inner.steps[0];
  const auto first = [&](std::size_t operand) {
    return plan.inner.start[operand] + (plan.rows ? plan.rows[n] : n) * plan.row_step[operand];
  };
  std::byte* const parameter = first(0);
  std::byte* const kept[]{first(2), first(3), first(4)};
  for (std::int64_t column = 0; column != plan.width; ++column) {
    const T gradient = gradient_of_row<T>(plan, n, plan.inner.start[1] + column * step[1]);
    update(element_at<T>(parameter + column * step[0]), gradient, element_at<T>(kept[0] + column * step[2]),
           element_at<T>(kept[1] + column * step[3]), element_at<T>(kept[2] + column * step[4]));
  }
}

template <class T, class Update>
void rows_on_host(const update_rows_plan& plan, const Update& update) {
  const rows_kernel<T, Update> each{plan, update};
  for (std::int64_t n = 0; n != plan.count; ++n) {
    if (plan.inner.rank == 1) {
      row_on_host<T>(plan, n, update);
      continue;
    }
    for (std::int64_t column = 0; column != plan.width; ++column) each.apply(n, column);
  }
}
template <class T>
void rows_on_host(const update_rows_plan& plan, const row_wise_update& update) {
  const row_wise_kernel<T> each{plan, update};
  for (std::int64_t n = 0; n != plan.count; ++n) each(n);
}

/// Writes the rows of the parameter (and its version) and what is kept of them, outside of the graph.
template <class Update>
void apply_rows(const update_operands& on, const chosen_rows* chosen, const Update& update) {
  const tensor& parameter = *on[0];
  const no_grad outside;
  parameter.mark_written();
  if (parameter.numel() == 0) return;
  const update_rows_plan plan = plan_rows(on, chosen);
  if (by_kernel(parameter)) return start_rows(on, plan, chosen ? chosen->lists : tensor(), update);
  if (parameter.dtype() == dtype::f32) return rows_on_host<float>(plan, update);
  rows_on_host<double>(plan, update);
}

}  // namespace ferry::inline v0::detail
