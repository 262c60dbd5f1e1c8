#pragma once

#include "options.hpp"
#include "report.hpp"

namespace ferry_bench {

/// What one worker costs in a group of that size, of which two workers run, and the others are records that the store has: the same
/// that workers write. In memory they would be too many for one machine.
void measure_forged_static(report& out, const options& chosen, int size);
void measure_forged_dynamic(report& out, const options& chosen, int size);

}  // namespace ferry_bench
