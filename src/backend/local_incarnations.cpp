#include "local_incarnations.hpp"

#include <mutex>
#include <set>

namespace ferry::inline v0::detail {
namespace {

struct incarnation_registry {
  std::mutex mutex;
  std::set<incarnation_id> there;
};

// Never destroyed: workers may end with the process.
incarnation_registry& local_incarnations() {
  static auto* const registry = new incarnation_registry;
  return *registry;
}

}  // namespace

local_incarnation::local_incarnation(incarnation_id which) : which_(which) {
  const std::lock_guard lock(local_incarnations().mutex);
  local_incarnations().there.insert(which);
}

local_incarnation::~local_incarnation() {
  const std::lock_guard lock(local_incarnations().mutex);
  local_incarnations().there.erase(which_);
}

bool runs_in_this_process(incarnation_id which) {
  const std::lock_guard lock(local_incarnations().mutex);
  return local_incarnations().there.contains(which);
}

}  // namespace ferry::inline v0::detail
