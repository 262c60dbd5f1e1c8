#pragma once

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::detail {

/// Makes calls the parents of their handlers where both were recorded at their own workers, and drops what the replies to these
/// calls brought of the same. Events are in the order of their beginnings, and stay so.
void link_calls(profiler::profile& in);

}  // namespace ferry::inline v0::detail
