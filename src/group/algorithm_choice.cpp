// Which way a collective of a group goes.

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "group_core.hpp"
#include "nccl_group.hpp"

namespace ferry::inline v0::detail {

group_plan group_core::plan(collective op, std::size_t bytes, device_kind memory) const {
  const int n = size();
  const plan_rule* const rule = own_rule(op, bytes);
  int levels = 0;
  while ((std::int64_t{1} << levels) < n) ++levels;
  const auto others = static_cast<std::size_t>(n - 1);
  const auto each = static_cast<std::size_t>(n);
  group_plan made;
  made.op = op;
  made.bytes = bytes;
  made.members = n;
  made.memory = memory;
  made.use = message_algorithm(op, bytes);
  made.chunk = facts_.options.chunk;
  made.not_shared = why_no_segment_;
  made.shared_failed = segment_failed_;
  if (!runs_in_segment(op)) {
    made.not_shared = "it is between two members";
    made.shared_failed = false;
  } else if (memory != device_kind::cpu) {
    made.not_shared = "the tensor is on a device";
    made.shared_failed = false;
  } else if (rule && rule->use != algorithm::shared && rule->use != algorithm::nccl) {
    made.not_shared = "a rule of the group says otherwise";
    made.shared_failed = false;
  } else if (segment() && segment()->has_left()) {
    made.not_shared = "a collective has failed in it, or had tensors on devices at some of its members";
    made.shared_failed = true;
  } else if (goes_through_segment(op, bytes)) {
    made.use = algorithm::shared;
    made.chunk = segment()->layout().slot_bytes;
  }
  if (memory == device_kind::cuda) {
    made.not_nccl = why_not_nccl(op, bytes);
    if (made.not_nccl.empty()) made.use = algorithm::nccl;
  }
  made.window = facts_.options.window;
  made.busbw_factor = 1;
  std::size_t of_piece = made.chunk;
  if (made.use == algorithm::shared) levels = 1;
  switch (op) {
    case collective::barrier: made.steps = levels; break;
    case collective::broadcast:
    case collective::reduce:
      made.steps = made.use == algorithm::chain ? n - 1 : levels;
      made.bytes_per_process =
          made.use == algorithm::tree && op == collective::broadcast ? static_cast<std::size_t>(levels) * bytes : bytes;
      break;
    case collective::all_reduce:
      made.busbw_factor = 2.0 * (n - 1) / n;
      if (made.use == algorithm::ring) {
        made.steps = 2 * (n - 1);
        made.bytes_per_process = 2 * others * bytes / each;
        of_piece *= each;
      } else if (made.use == algorithm::shared) {
        made.steps = takes_two_phases(op, bytes, n) ? 2 : 1;
        made.bytes_per_process = bytes;
      } else {
        made.steps = n > 1 ? 1 : 0;
        made.bytes_per_process = others * bytes;
      }
      break;
    case collective::all_gather:
    case collective::reduce_scatter:
    case collective::all_to_all:
      made.busbw_factor = static_cast<double>(n - 1) / n;
      made.steps = made.use == algorithm::ring ? n - 1 : std::min(n - 1, 1);
      made.bytes_per_process = others * bytes / each;
      if (made.use == algorithm::shared && op == collective::all_gather) made.bytes_per_process = bytes / each;
      if (made.use != algorithm::shared || op == collective::all_gather) of_piece *= each;
      break;
    case collective::send:
      made.steps = 1;
      made.bytes_per_process = bytes;
      break;
    case collective::receive: made.steps = 1; break;
  }
  if (made.use == algorithm::nccl) {
    made.steps = levels + 1;
    made.chunk = of_piece = std::max<std::size_t>(bytes, 1);
    if (op == collective::all_reduce) made.bytes_per_process = 2 * others * bytes / each;
    if (op == collective::broadcast) made.bytes_per_process = bytes;
  }
  made.pieces =
      op == collective::barrier ? 1 : std::max<std::size_t>(1, bytes / of_piece + (bytes % of_piece != 0 ? 1 : 0));
  if (n == 1) made.bytes_per_process = 0;
  return made;
}

std::string group_core::why_not_nccl(collective op, std::size_t bytes) const {
  if (!has_algorithm(op, algorithm::nccl)) return fmt::format("it makes no {}", to_string(op));
  if (!nccl_) return size() == 1 ? "there is one member" : "the group does without: group_options::nccl";
  if (bytes == 0) return "there are no elements";
  if (!may_go_by_nccl(op, bytes)) return "a rule of the group says otherwise";
  return nccl_->why_not();
}

const plan_rule* group_core::own_rule(collective op, std::size_t bytes) const noexcept {
  const std::span<const plan_rule> chosen = facts_.options.plan;
  const std::size_t at = find_rule(chosen, op, bytes, size());
  return at != chosen.size() ? &chosen[at] : nullptr;
}

algorithm group_core::message_algorithm(collective op, std::size_t bytes) const {
  const plan_rule* const rule = own_rule(op, bytes);
  if (rule && rule->use != algorithm::shared && rule->use != algorithm::nccl) return rule->use;
  return default_plan[find_rule(default_plan, op, bytes, size())].use;
}

bool group_core::goes_through_segment(collective op, std::size_t bytes) const noexcept {
  if (!segment() || !runs_in_segment(op)) return false;
  const plan_rule* const rule = own_rule(op, bytes);
  return !rule || rule->use == algorithm::shared || rule->use == algorithm::nccl;
}

bool group_core::may_go_by_nccl(collective op, std::size_t bytes) const noexcept {
  if (!nccl_ || bytes == 0 || !has_algorithm(op, algorithm::nccl)) return false;
  const plan_rule* const rule = own_rule(op, bytes);
  return !rule || rule->use == algorithm::nccl || rule->use == algorithm::shared;
}

}  // namespace ferry::inline v0::detail
