#include "worker_name.hpp"

#include <cstddef>
#include <set>

#include <fmt/format.h>

#include "../rpc/worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

bool has_name(const profiler::profile& in, std::int32_t node) noexcept {
  const auto place = static_cast<std::size_t>(node);
  return node >= 0 && place < in.workers.size() && !in.workers[place].empty();
}

}  // namespace

std::string worker_name(const profiler::profile& in, std::int32_t node) {
  return has_name(in, node) ? in.workers[static_cast<std::size_t>(node)] : fmt::format("worker {}", node);
}

void add_worker_names(profiler::profile& to, const std::weak_ptr<worker_core>& known_by) {
  std::set<std::int32_t> missing;
  for (const profiler::event& each : to.events) {
    if (each.node >= 0 && !has_name(to, each.node)) missing.insert(each.node);
  }
  const auto worker = missing.empty() ? nullptr : known_by.lock();
  if (!worker) return;
  for (const worker_info& each : worker->agent_unchecked().members().workers()) {
    if (!missing.contains(each.id().value)) continue;
    const auto place = static_cast<std::size_t>(each.id().value);
    if (to.workers.size() <= place) to.workers.resize(place + 1);
    to.workers[place] = each.name();
  }
}

}  // namespace ferry::inline v0::detail
