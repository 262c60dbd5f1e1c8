#include <ferry/profiler/profile.hpp>

#include <algorithm>

namespace ferry::inline v0::profiler {

const event* profile::find(std::string_view name) const noexcept {
  const auto found = std::find_if(events.begin(), events.end(), [&](const event& each) { return each.name == name; });
  return found == events.end() ? nullptr : &*found;
}

std::size_t profile::count(std::string_view name) const noexcept {
  return static_cast<std::size_t>(
      std::count_if(events.begin(), events.end(), [&](const event& each) { return each.name == name; }));
}

const event* profile::find(std::uint64_t number) const noexcept {
  const auto found =
      std::find_if(events.begin(), events.end(), [&](const event& each) { return each.number == number; });
  return found == events.end() ? nullptr : &*found;
}

std::vector<const event*> profile::children(const event& of) const {
  std::vector<const event*> found;
  for (const event& each : events) {
    if (each.parent == of.number) found.push_back(&each);
  }
  return found;
}

}  // namespace ferry::inline v0::profiler
