#pragma once

#include <chrono>
#include <string_view>

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::detail {

/// Throws errc::invalid_argument, naming the worker and the options that allow more, if a clock is known less well than that.
void require_certain_clocks(const profiler::profile& in, std::chrono::nanoseconds largest_uncertainty,
                            std::string_view options);

}  // namespace ferry::inline v0::detail
