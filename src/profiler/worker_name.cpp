#include "worker_name.hpp"

#include <fmt/format.h>

namespace ferry::inline v0::detail {

std::string worker_name(const profiler::profile& in, std::int32_t node) {
  const auto place = static_cast<std::size_t>(node);
  const bool named = node >= 0 && place < in.workers.size() && !in.workers[place].empty();
  return named ? in.workers[place] : fmt::format("worker {}", node);
}

}  // namespace ferry::inline v0::detail
