#include <ferry/tensor/operation.hpp>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/hooks.hpp>

#include "device_kernels.hpp"
#include "layout.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Whether this thread is within an operation or a hook.
constinit thread_local bool within_operation = false;

void need_devices(const tensor& t, const operation_info& info) {
  switch (info.needs.devices) {
    case device_set::any: return;
    case device_set::cpu: return need_cpu(t, info.name);
    case device_set::with_kernels: break;
  }
  if (t.device().is_cpu() || has_kernels(t.device())) return;
  throw_error(errc::bad_device,
              fmt::format("{} works on tensors of the CPU and of CUDA devices{}; this one is on {}: move "
                          "it with to(ferry::device{{}})",
                          info.name, t.device().is_cuda() ? ", for which this ferry was built without kernels" : "",
                          to_string(t.device())));
}

void need_alike(const tensor& a, const tensor& b, std::string_view operation) {
  need_one_device(a.device(), b.device(), operation);
  if (a.dtype() == b.dtype()) return;
  throw_error(errc::bad_dtype, fmt::format("{} of {} and {}: convert one of them with to()", operation,
                                           dtype_name(a.dtype()), dtype_name(b.dtype())));
}

void need_elements(const tensor& t, const operation_info& info) {
  if (info.needs.elements == element_set::any) return;
  const dtype type = t.dtype();
  if (type == dtype::f32 || type == dtype::f64) return;
  const bool floating = info.needs.elements == element_set::floating;
  if (!floating && (type == dtype::i32 || type == dtype::i64)) return;
  throw_error(errc::bad_dtype, fmt::format("{} works on {}, not on {}; convert with to()", info.name,
                                           floating ? "f32 and f64" : "i32, i64, f32 and f64", dtype_name(type)));
}

}  // namespace

void need_one_device(device a, device b, std::string_view operation) {
  if (a == b) return;
  throw_error(errc::bad_device, fmt::format("{} of tensors on {} and on {}: move one of them with to()", operation,
                                            to_string(a), to_string(b)));
}

void check_needs(const operation_info& info, std::span<const tensor* const> inputs) {
  for (const tensor* each : inputs) {
    if (info.needs.alike && each != inputs.front()) need_alike(*inputs.front(), *each, info.name);
    if (!info.needs.alike || each == inputs.front()) need_devices(*each, info);
  }
  for (const tensor* each : inputs) need_elements(*each, info);
}

void need_writable(const operation_info& info, const tensor& target) { need_distinct(target, info.name); }

operation_reports::operation_reports(const operation& what, std::span<const tensor* const> inputs) : what_(what) {
  if (within_operation) return;
  for (const tensor* each : inputs) {
    if (!each->has_slot()) continue;
    hooks_ = each->slot();
    break;
  }
  if (!hooks_) return;
  inputs_.reserve(inputs.size());
  for (const tensor* each : inputs) inputs_.push_back(*each);
}

operation_reports::~operation_reports() = default;

void operation_reports::mutated() {
  if (!hooks_) return;
  const unreported parts;
  hooks_->mutated(what_, inputs_.front(), inputs_);
}

void operation_reports::computed(std::span<tensor> outputs) {
  if (!hooks_) return;
  const unreported parts;
  hooks_->computed(what_, inputs_, outputs);
}

void operation_reports::viewed(tensor& view) {
  if (!hooks_) return;
  const unreported parts;
  hooks_->viewed(what_, inputs_.front(), view);
}

std::string watched_operation::shapes() const {
  std::string text = "[";
  for (const tensor* each : inputs_) {
    if (text.size() != 1) text += ", ";
    text += '[';
    bool first = true;
    for (const std::int64_t extent : each->shape()) {
      if (!std::exchange(first, false)) text += ", ";
      text += std::to_string(extent);
    }
    text += ']';
  }
  return text + ']';
}

std::int64_t watched_operation::bytes() const noexcept {
  std::int64_t sum = 0;
  for (const tensor& each : outputs_) {
    if (each.defined()) sum += static_cast<std::int64_t>(each.storage().size());
  }
  return sum;
}

unreported::unreported() noexcept : former_(std::exchange(within_operation, true)) {}
unreported::~unreported() { within_operation = former_; }

}  // namespace detail

void operation::refuse_type(const operation_info& wanted) const {
  throw_error(errc::invalid_argument,
              fmt::format("the parameters of {} were asked for, but the operation is {}", wanted.name, name()));
}

}  // namespace ferry::inline v0
