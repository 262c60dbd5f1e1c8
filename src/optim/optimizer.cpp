#include <ferry/optim/optimizer.hpp>

#include <unordered_set>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/operation.hpp>

#include "apply.hpp"

namespace ferry::inline v0::detail {

void need_group(std::string_view algorithm, std::span<const tensor> parameters, std::span<const tensor> present) {
  if (parameters.empty()) {
    throw_error(errc::invalid_argument, fmt::format("{}: a group without parameters", algorithm));
  }
  std::unordered_set<std::uintptr_t> known;
  for (const tensor& each : present) known.insert(each.id());
  for (std::size_t i = 0; i != parameters.size(); ++i) {
    need_parameter(algorithm, i, parameters[i]);
    const auto refuse = [&](std::string_view why) {
      throw_error(errc::invalid_argument, fmt::format("{} {}", name_of_parameter(algorithm, i), why));
    };
    if (!is_leaf(parameters[i]))
      refuse("was computed from a tensor that requires a gradient: only leaves are optimized");
    if (!known.insert(parameters[i].id()).second) refuse("is in a group already");
  }
}

void clear_gradients(std::span<const tensor> parameters) {
  for (const tensor& each : parameters) {
    if (grad(each).defined() || has_sparse_grad(each)) set_grad(each, {});
  }
}

parameter_gradient gradient_of(const tensor& parameter) { return {grad(parameter), sparse_grad(parameter)}; }

tensor dense_form(const parameter_gradient& gradient) {
  const unreported parts;
  return gradient.rows.defined() ? gradient.rows.to_dense() : gradient.dense;
}

void refuse_group(std::string_view algorithm, std::size_t group, std::size_t groups) {
  throw_error(errc::invalid_argument, fmt::format("{}: there is no group {}, only {}", algorithm, group, groups));
}

void refuse_stranger(std::string_view algorithm) {
  throw_error(errc::invalid_argument, fmt::format("{}: the tensor is a parameter of none of the groups", algorithm));
}

void need_record(std::string_view algorithm, std::uint32_t record, std::uint64_t archived, std::uint64_t groups,
                 std::size_t wanted_groups) {
  if (record != optimizer_record) {
    throw_error(errc::malformed,
                fmt::format("{}: the archive does not hold an optimizer here, or one of a later ferry", algorithm));
  }
  if (archived != fingerprint(algorithm)) {
    throw_error(errc::invalid_argument, fmt::format("{}: the archive holds the state of another algorithm", algorithm));
  }
  if (groups != wanted_groups) {
    throw_error(errc::invalid_argument,
                fmt::format("{}: the archive holds {} groups, the optimizer has {}", algorithm, groups, wanted_groups));
  }
}

void need_archived_count(std::string_view algorithm, std::size_t group, std::uint64_t count, std::size_t wanted) {
  if (count == wanted) return;
  throw_error(errc::invalid_argument, fmt::format("{}: the archive holds {} parameters of group {}, which has {}",
                                                  algorithm, count, group, wanted));
}

void need_archived_steps(std::string_view algorithm, std::int64_t steps) {
  constexpr std::int64_t most = std::int64_t{1} << 53U;  // every one of them is a number of f64
  if (steps >= 0 && steps < most) return;
  throw_error(errc::malformed, fmt::format("{}: the archive claims {} steps", algorithm, steps));
}

void adopt_archived(std::string_view algorithm, parameter_place place, std::string_view name, tensor& archived,
                    const tensor& parameter, const dims& shape) {
  if (!archived.defined()) return;
  const bool fits = archived.shape() == shape;
  if (!fits || archived.dtype() != parameter.dtype()) {
    throw_error(
        fits ? errc::bad_dtype : errc::bad_shape,
        fmt::format("{}: the archive holds a state of another parameter: {} of parameter {} in group {} is {} {}, "
                    "not {} {}",
                    algorithm, name, place.index, place.group, dtype_name(archived.dtype()),
                    to_string(archived.shape()), dtype_name(parameter.dtype()), to_string(shape)));
  }
  // A view may have one element of memory for several of its own.
  archived = archived.to(parameter.device()).contiguous();
}

}  // namespace ferry::inline v0::detail
