#pragma once

// What the members of a ddp do together before and after their passes.

#include <cstdint>
#include <vector>

#include <ferry/group/process_group.hpp>

#include "ddp_model.hpp"

namespace ferry::inline v0::detail {

// Collective, both.
/// Whether all have the same parameters: throws errc::group_mismatch. Returns a number of the module, the same on all members.
std::uint64_t agree_on_parts(const process_group& group, const std::vector<ddp_part>& parts,
                             const std::vector<ddp_part>& trained, const nn::ddp_options& options);
/// Writes those of the root to those of all.
void give_parts(const process_group& group, const ddp_model& model, int root, timeout limit);

}  // namespace ferry::inline v0::detail
