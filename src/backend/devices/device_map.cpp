#include <ferry/backend/device_map.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/backend/worker_info.hpp>
#include <ferry/base/error.hpp>
#include <ferry/device/traits.hpp>

#include "device_record.hpp"

namespace ferry::inline v0 {

device_spec::device_spec(device where) : where_(where) {
  if (where.index < 0) refuse_index(std::to_string(where.index));
}

void device_spec::refuse_index(const std::string& index) {
  throw_error(errc::bad_device,
              index.starts_with('-')
                  ? fmt::format("device index must not be negative, and is {}", index)
                  : fmt::format("device index must be at most {}, and is {}", std::numeric_limits<int>::max(), index));
}

device_map::device_map(std::initializer_list<device_pair> entries) : device_map(std::vector<device_pair>(entries)) {}

device_map::device_map(const std::vector<device_pair>& entries) : device_map(merged(entries)) {
  std::map<device, device> by_target;
  for (const device_pair& each : entries_) {
    const auto [other, first] = by_target.emplace(each.to, each.from);
    if (!first) {
      throw_error(errc::invalid_argument,
                  fmt::format("a device map is one-to-one, but {} and {} both lead to {}", to_string(other->second),
                              to_string(each.from), to_string(each.to)));
    }
  }
}

device_map device_map::merged(std::vector<device_pair> entries) {
  device_map result;
  result.entries_ = std::move(entries);
  auto& all = result.entries_;
  std::stable_sort(all.begin(), all.end(), [](const device_pair& a, const device_pair& b) { return a.from < b.from; });
  all.erase(std::unique(all.begin(), all.end()), all.end());
  const auto twice = std::adjacent_find(all.begin(), all.end(),
                                        [](const device_pair& a, const device_pair& b) { return a.from == b.from; });
  if (twice != all.end()) {
    throw_error(errc::invalid_argument,
                fmt::format("a device map is one-to-one, but {} leads to {} and to {}", to_string(twice->from),
                            to_string(twice->to), to_string((twice + 1)->to)));
  }
  return result;
}

void device_map::merge(const device_map& more) {
  std::vector<device_pair> all(entries_);
  all.insert(all.end(), more.begin(), more.end());
  *this = merged(std::move(all));
}

const device* device_map::find(device from) const noexcept {
  const auto at = std::lower_bound(begin(), end(), from,
                                   [](const device_pair& entry, device wanted) { return entry.from < wanted; });
  return at != end() && at->from == from ? &at->to : nullptr;
}

device_map device_map::inverse() const {
  device_map result;
  result.entries_.reserve(size());
  for (const device_pair& each : entries_) result.entries_.emplace_back(each.to, each.from);
  std::sort(result.entries_.begin(), result.entries_.end(),
            [](const device_pair& a, const device_pair& b) { return a.from < b.from; });
  const auto shared = std::adjacent_find(result.begin(), result.end(),
                                         [](const device_pair& a, const device_pair& b) { return a.from == b.from; });
  if (shared != result.end()) {
    throw_error(errc::invalid_argument,
                fmt::format("the device map {} has no inverse: {} and {} both lead to {}", to_string(*this),
                            to_string(shared->to), to_string((shared + 1)->to), to_string(shared->from)));
  }
  return result;
}

bool device_map::is_one_to_one() const {
  std::set<device> targets;
  return std::all_of(begin(), end(), [&](const device_pair& each) { return targets.insert(each.to).second; });
}

std::string to_string(const device_map& map) {
  std::vector<std::string> entries;
  entries.reserve(map.size());
  for (const device_pair& each : map)
    entries.push_back(fmt::format("{}: {}", to_string(each.from), to_string(each.to)));
  return fmt::format("{{{}}}", fmt::join(entries, ", "));
}

device_counts local_device_counts() {
  device_counts result;
  for (int number = 1; number <= std::numeric_limits<std::uint8_t>::max(); ++number) {
    const auto kind = static_cast<device_kind>(number);
    if (device_kind_name(kind) != "unknown") result.emplace(kind, operations_of(kind).count());
  }
  return result;
}

namespace detail {

void add_device_map(device_map_table& maps, std::string_view worker, const device_map& map) {
  check_worker_name(worker);
  if (const auto there = maps.find(worker); there != maps.end()) {
    there->second.merge(map);
  } else {
    maps.emplace(worker, map);
  }
}

std::vector<device> declared_devices(std::initializer_list<device_spec> devices) {
  std::vector<device> result;
  result.reserve(devices.size());
  for (const device_spec& each : devices) result.push_back(each.where());
  check_device_options({}, result);
  return result;
}

void check_device_options(const device_map_table& maps, const std::vector<device>& devices) {
  for (const device each : devices) {
    if (each.is_cpu()) {
      throw_error(errc::invalid_argument,
                  "devices lists the devices beside the CPU, which every worker has; leave it out");
    }
    static_cast<void>(device_spec(each));
  }
  for (const auto& [worker, map] : maps) check_worker_name(worker);
  if (maps.empty() && devices.empty()) return;
  const device_record record{{}, devices, maps};
  if (const std::size_t size = record.encode().size(); size > device_record::max_text) {
    throw_error(errc::invalid_argument, fmt::format("device_maps and devices take {} bytes as text, more than {}", size,
                                                    device_record::max_text));
  }
}

}  // namespace detail

}  // namespace ferry::inline v0
