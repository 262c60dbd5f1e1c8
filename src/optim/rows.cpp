#include "rows.hpp"

#include <span>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/operation.hpp>

#include "../ops/grouping.hpp"

namespace ferry::inline v0::detail {
namespace {

dims without_first(const dims& all) { return {all.begin() + 1, all.size() - 1}; }

void need_rows(std::string_view algorithm, const tensor& parameter, const tensor& indices, const tensor& values) {
  need_parameter(algorithm, 0, parameter);
  const auto refuse = [&](errc code, const std::string& why) {
    throw_error(code, fmt::format("{}: {}", algorithm, why));
  };
  if (!indices.defined() || !values.defined())
    refuse(errc::invalid_argument, "indices or values of rows are undefined");
  if (parameter.rank() == 0) refuse(errc::bad_shape, "a parameter without axes has no rows");
  if (indices.dtype() != dtype::i64) {
    refuse(errc::bad_dtype, fmt::format("indices of rows are i64, not {}", dtype_name(indices.dtype())));
  }
  if (indices.rank() != 1) {
    refuse(errc::bad_shape, fmt::format("indices of rows have one axis, not shape {}", to_string(indices.shape())));
  }
  dims wanted = parameter.shape();
  wanted[0] = indices.size(0);
  if (values.shape() != wanted) {
    refuse(errc::bad_shape, fmt::format("values of shape {} for {} rows of a parameter of shape {}",
                                        to_string(values.shape()), indices.size(0), to_string(parameter.shape())));
  }
  if (values.dtype() != parameter.dtype()) {
    refuse(errc::bad_dtype, fmt::format("values of {} for a parameter of {}", dtype_name(values.dtype()),
                                        dtype_name(parameter.dtype())));
  }
  if (values.device() != parameter.device()) {
    refuse(errc::bad_device, fmt::format("values on {} for a parameter on {}", to_string(values.device()),
                                         to_string(parameter.device())));
  }
}

}  // namespace

chosen_rows choose_rows(std::string_view algorithm, const tensor& parameter, const tensor& indices,
                        const tensor& values) {
  need_rows(algorithm, parameter, indices, values);
  const unreported parts;
  const tensor here = indices.to(device{}).contiguous();
  const std::span<const std::int64_t> given(here.data<std::int64_t>(), static_cast<std::size_t>(here.numel()));
  const std::int64_t rows = parameter.size(0);
  for (std::size_t i = 0; i != given.size(); ++i) {
    if (given[i] >= 0 && given[i] < rows) continue;
    throw_error(errc::bad_shape, fmt::format("{}: index {} at position {} is not one of the {} rows of the parameter",
                                             algorithm, given[i], i, rows));
  }
  if (given.empty()) return {};

  number_groups groups = group_numbers(given);
  chosen_rows result;
  result.count = static_cast<std::int64_t>(groups.distinct.size());
  std::vector<std::int64_t>& lists = groups.distinct;
  lists.insert(lists.end(), groups.begins.begin(), groups.begins.end());
  lists.insert(lists.end(), groups.order.begin(), groups.order.end());
  result.lists = from_vector(lists).to(parameter.device());
  return result;
}

update_rows_plan plan_rows(const update_operands& on, const chosen_rows* chosen) {
  const tensor& parameter = *on[0];
  const dims inner = without_first(parameter.shape());
  update_rows_plan plan{};
  std::array<tensor, 5> first_rows;
  update_operands first{};
  for (std::size_t n = 0; n != 5; ++n) {
    const tensor& each = *on[n];
    // What has one number for each row is seen as that number everywhere in the row.
    const dims strides = each.rank() == parameter.rank() ? without_first(each.strides()) : dims(inner.size(), 0);
    first_rows[n] = make_tensor(each.storage(), each.dtype(), inner, strides, each.storage_offset());
    first[n] = &first_rows[n];
    plan.row_step[n] = each.strides()[0] * static_cast<std::int64_t>(dtype_size(each.dtype()));
  }
  plan.inner = plan_walk<5>(first);
  plan.width = element_count(inner);
  plan.count = chosen ? chosen->count : parameter.size(0);
  if (chosen) {
    plan.rows = chosen->lists.data<std::int64_t>();
    plan.begins = plan.rows + plan.count;
    plan.gradients = plan.begins + plan.count + 1;
  }
  return plan;
}

}  // namespace ferry::inline v0::detail
