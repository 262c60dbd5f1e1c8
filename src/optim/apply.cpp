#include "apply.hpp"

#include <cmath>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/operation.hpp>

#include "../tensor/device_kernels.hpp"

namespace ferry::inline v0::detail {
namespace {

std::string looks_of(const tensor& t) {
  return fmt::format("{} {} on {}", dtype_name(t.dtype()), to_string(t.shape()), to_string(t.device()));
}

// Throws unless `t` has the dtype and device of the parameter, and this shape.
void need_like(const std::string& what, const tensor& t, const tensor& parameter, const dims& shape) {
  const errc code = t.shape() != shape                 ? errc::bad_shape
                    : t.dtype() != parameter.dtype()   ? errc::bad_dtype
                    : t.device() != parameter.device() ? errc::bad_device
                                                       : errc{};
  if (code == errc{}) return;
  const std::string wanted =
      shape == parameter.shape() ? std::string() : fmt::format(", for which it has shape {}", to_string(shape));
  throw_error(code, fmt::format("{} is {}, the parameter {}{}", what, looks_of(t), looks_of(parameter), wanted));
}

}  // namespace

void need_option(bool holds, std::string_view algorithm, std::string_view option, double value,
                 std::string_view range) {
  if (holds && std::isfinite(value)) return;
  throw_error(errc::invalid_argument, fmt::format("{}: the option {} is {}; it must be {}{}", algorithm, option, value,
                                                  range, holds ? ", and finite" : ""));
}

void need_bound(std::string_view algorithm, std::string_view option, double value) {
  need_option(value >= 0, algorithm, option, std::isinf(value) && value > 0 ? 0 : value, "at least 0");
}

std::string name_of_parameter(std::string_view algorithm, std::size_t index) {
  return fmt::format("{}: parameter {}", algorithm, index);
}

void need_parameter(std::string_view algorithm, std::size_t index, const tensor& parameter) {
  const auto refuse = [&](errc code, const std::string& why) {
    throw_error(code, fmt::format("{} {}", name_of_parameter(algorithm, index), why));
  };
  if (!parameter.defined()) refuse(errc::invalid_argument, "is undefined");
  if (parameter.dtype() != dtype::f32 && parameter.dtype() != dtype::f64) {
    refuse(errc::bad_dtype, fmt::format("is of {}: only f32 and f64 are updated", dtype_name(parameter.dtype())));
  }
  if (!parameter.device().is_cpu() && !has_kernels(parameter.device())) {
    refuse(errc::bad_device,
           fmt::format("is on {}, for which this ferry has no kernels", to_string(parameter.device())));
  }
  need_distinct(parameter, name_of_parameter(algorithm, index));
}

void need_update(std::string_view algorithm, std::span<const tensor> parameters, std::span<const tensor> gradients,
                 std::size_t states) {
  if (gradients.size() != parameters.size() || states != parameters.size()) {
    throw_error(errc::invalid_argument, fmt::format("{}: {} gradients and {} states for {} parameters", algorithm,
                                                    gradients.size(), states, parameters.size()));
  }
  for (std::size_t i = 0; i != parameters.size(); ++i) {
    need_parameter(algorithm, i, parameters[i]);
    if (!gradients[i].defined()) continue;
    need_like(fmt::format("{}: the gradient of parameter {}", algorithm, i), gradients[i], parameters[i],
              parameters[i].shape());
  }
}

void need_kept(std::string_view algorithm, std::size_t index, std::string_view name, tensor& kept,
               const tensor& parameter, const dims& shape, double value) {
  if (!kept.defined()) {
    kept = full(shape, value, parameter.dtype(), parameter.device());
    return;
  }
  const std::string what = fmt::format("{}: {} in the state of parameter {}", algorithm, name, index);
  need_like(what, kept, parameter, shape);
  need_distinct(kept, what);
}

tensor apart_from(const tensor& gradient, const tensor& parameter) {
  const bool shares = gradient.storage().same_as(parameter.storage()) || may_overlap(gradient, parameter);
  if (!shares) return gradient;
  const unreported copy;
  return gradient.clone();
}

}  // namespace ferry::inline v0::detail
