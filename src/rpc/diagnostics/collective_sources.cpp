#include "collective_sources.hpp"

#include <algorithm>

#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

std::vector<collective_source>& collective_sources() {
  static auto* instance = new std::vector<collective_source>;  // outlives static destruction on purpose
  return *instance;
}

}  // namespace

void add_collective_source(collective_source source) { collective_sources().push_back(source); }

collectives_of_worker worker_core::collectives(clock::time_point now) const {
  collectives_of_worker all;
  for (const collective_source each : collective_sources()) each(*this, now, all);
  std::stable_sort(all.pending.begin(), all.pending.end(), [](const auto& a, const auto& b) { return a.age > b.age; });
  return all;
}

}  // namespace ferry::inline v0::detail
