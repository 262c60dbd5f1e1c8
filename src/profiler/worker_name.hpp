#pragma once

#include <cstdint>
#include <string>

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::detail {

/// The name that the profile has for a worker, else "worker ID".
std::string worker_name(const profiler::profile& in, std::int32_t node);

}  // namespace ferry::inline v0::detail
