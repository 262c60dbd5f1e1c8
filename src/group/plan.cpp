#include <ferry/group/plan.hpp>

#include <fmt/format.h>

namespace ferry::inline v0 {

std::string_view to_string(collective op) noexcept {
  switch (op) {
    case collective::barrier: return "barrier";
    case collective::broadcast: return "broadcast";
    case collective::all_reduce: return "all_reduce";
    case collective::reduce: return "reduce";
    case collective::all_gather: return "all_gather";
    case collective::reduce_scatter: return "reduce_scatter";
    case collective::all_to_all: return "all_to_all";
    case collective::send: return "send";
    case collective::receive: return "receive";
  }
  return "unknown";
}

std::string_view to_string(reduce_op op) noexcept {
  switch (op) {
    case reduce_op::sum: return "sum";
    case reduce_op::avg: return "avg";
    case reduce_op::min: return "min";
    case reduce_op::max: return "max";
    case reduce_op::prod: return "prod";
  }
  return "unknown";
}

std::string_view to_string(algorithm which) noexcept {
  switch (which) {
    case algorithm::exchange: return "exchange";
    case algorithm::ring: return "ring";
    case algorithm::tree: return "tree";
    case algorithm::chain: return "chain";
    case algorithm::dissemination: return "dissemination";
    case algorithm::direct: return "direct";
    case algorithm::shared: return "shared";
    case algorithm::nccl: return "nccl";
  }
  return "unknown";
}

std::string to_string(const group_plan& plan) {
  const bool staged = plan.memory != device_kind::cpu && plan.use != algorithm::nccl;
  std::string text = fmt::format(
      "{} of {} bytes among {}: {}{}, {} step{}, {} bytes per process, {} piece{} {} up to {} bytes",
      to_string(plan.op), plan.bytes, plan.members, staged ? "staged " : "", to_string(plan.use), plan.steps,
      plan.steps == 1 ? "" : "s", plan.bytes_per_process, plan.pieces, plan.pieces == 1 ? "" : "s",
      plan.use == algorithm::shared ? "in shared memory"
      : plan.use == algorithm::nccl ? "on the device"
                                    : "of messages",
      plan.chunk);
  if (plan.shared_failed) text += fmt::format("; not in shared memory: {}", plan.not_shared);
  return text;
}

}  // namespace ferry::inline v0
