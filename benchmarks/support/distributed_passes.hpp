#pragma once

#include <map>
#include <string>

#include "options.hpp"
#include "process.hpp"
#include "report.hpp"

namespace ferry_bench {

/// Roles of the processes that measure_distributed() starts.
std::map<std::string, role> distributed_roles();

/// Passes through two workers: the round of a context, one remote addition, backward and the end of the context, against plain calls
/// with tensors between the same two processes.
void measure_distributed(report& out, const options& chosen);

}  // namespace ferry_bench
