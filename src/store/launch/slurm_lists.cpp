#include "slurm_lists.hpp"

#include <algorithm>

#include "init_method.hpp"

namespace ferry::inline v0::detail {

std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  std::size_t at = 0;
  while (at < list.size() && list[at] != ',') {
    if (list[at] == ']') return std::nullopt;
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const std::size_t closing = list.find(']', at);
    if (closing == std::string_view::npos) return std::nullopt;
    const std::string_view ranges = list.substr(at + 1, closing - at - 1);
    const std::string_view first = ranges.substr(0, ranges.find_first_of(",-"));
    // Keep the digits: leading zeros are part of the name.
    if (first.empty() || first.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
    host += first;
    at = closing + 1;
  }
  if (host.empty()) return std::nullopt;
  return host;
}

std::optional<int> repeated_number(std::string_view list, int index) {
  while (!list.empty()) {
    std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    int times = 1;
    if (const auto open = entry.find("(x"); open != std::string_view::npos) {
      if (!entry.ends_with(')')) return std::nullopt;
      const auto repeated = parse_number(entry.substr(open + 2, entry.size() - open - 3));
      if (!repeated || *repeated < 1) return std::nullopt;
      times = *repeated;
      entry = entry.substr(0, open);
    }
    const auto number = parse_number(entry);
    if (!number || *number < 0) return std::nullopt;
    if (index < times) return number;
    index -= times;
  }
  return std::nullopt;
}

}  // namespace ferry::inline v0::detail
