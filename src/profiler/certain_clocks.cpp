#include "certain_clocks.hpp"

#include <fmt/format.h>
#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

void require_certain_clocks(const profiler::profile& in, std::chrono::nanoseconds largest_uncertainty,
                            std::string_view options) {
  for (const profiler::event& each : in.events) {
    if (each.uncertainty_ns <= largest_uncertainty.count()) continue;
    throw_error(
        errc::invalid_argument,
        fmt::format("the clock of worker {} is known to {:.3f} ms only, and what is shown is to be right within {:.3f} "
                    "ms: profile more calls to it (the quickest one counts), or allow more in {}",
                    each.node, static_cast<double>(each.uncertainty_ns) / 1e6,
                    static_cast<double>(largest_uncertainty.count()) / 1e6, options));
  }
}

}  // namespace ferry::inline v0::detail
