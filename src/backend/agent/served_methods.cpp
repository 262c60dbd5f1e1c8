#include <ferry/backend/served_methods.hpp>

#include <algorithm>
#include <utility>

namespace ferry::inline v0 {

served_methods::served_methods(std::vector<std::uint64_t> ids) : everything_(false), ids_(std::move(ids)) {
  std::sort(ids_.begin(), ids_.end());
}

bool served_methods::is_listed(std::uint64_t id) const noexcept {
  return std::binary_search(ids_.begin(), ids_.end(), id);
}

}  // namespace ferry::inline v0
