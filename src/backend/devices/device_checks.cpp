#include "device_checks.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {
namespace {

std::string text_of(std::span<const device> devices) {
  std::vector<std::string> names;
  names.reserve(devices.size());
  for (const device each : devices) names.push_back(to_string(each));
  return fmt::format("[{}]", fmt::join(names, ", "));
}

std::string text_of(const device_counts& counts) {
  std::vector<std::string> each;
  for (const auto& [kind, count] : counts) each.push_back(fmt::format("{} {}", count, device_kind_name(kind)));
  return each.empty() ? "none" : fmt::format("{}", fmt::join(each, ", "));
}

bool exists(device which, const device_counts& counts) {
  if (which.is_cpu()) return which.index == 0;
  const auto kind = counts.find(which.kind);
  return kind != counts.end() && which.index >= 0 && which.index < kind->second;
}

bool exists(device which, const device_record& there) { return !there.counted || exists(which, there.counts); }

bool declared(device which, std::span<const device> devices) {
  return std::find(devices.begin(), devices.end(), which) != devices.end();
}

template <class Test>
bool all_sources(const device_map& map, Test test) {
  return std::all_of(map.begin(), map.end(), [&](const device_pair& each) { return test(each.from); });
}
template <class Test>
bool all_targets(const device_map& map, Test test) {
  return std::all_of(map.begin(), map.end(), [&](const device_pair& each) { return test(each.to); });
}

// Checks of the worker alone.
std::string broken_declaration(const worker_devices& who) {
  if (!who.record) return {};
  const device_record& record = *who.record;
  const std::vector<device>& devices = record.devices;
  if (std::set<device>(devices.begin(), devices.end()).size() != devices.size()) {
    return fmt::format("worker {} has duplicated devices; devices = {}", who.name, text_of(devices));
  }
  if (!std::all_of(devices.begin(), devices.end(), [&](device each) { return exists(each, record); })) {
    return fmt::format("worker {} has devices with invalid indices; devices = {}, device count = {}", who.name,
                       text_of(devices), text_of(record.counts));
  }
  return {};
}

using records_by_name = std::map<std::string_view, const device_record*>;

std::string broken_targets(const worker_devices& source, const records_by_name& group) {
  std::vector<std::string_view> unknown;
  for (const auto& [target, map] : source.record->maps) {
    if (group.count(target) == 0) unknown.push_back(target);
  }
  if (unknown.empty()) return {};
  return fmt::format("worker {} has invalid target node names in its device maps: no worker of the group is called {}",
                     source.name, fmt::join(unknown, ", "));
}

// `name`: of a target that may (later) be a member or not: then `target` is null.
std::string broken_map(const worker_devices& source, std::string_view name, const device_map& map,
                       const device_record* target) {
  const device_record& own = *source.record;
  const auto say = [&, &from = source](std::string_view what, std::string_view more) {
    return fmt::format("worker {} has {} in its device map for {}; device map = {}{}", from.name, what, name,
                       to_string(map), more);
  };
  const auto with_list = [](std::span<const device> list) { return ", devices = " + text_of(list); };
  const auto with_counts = [](const device_counts& there) { return ", device count = " + text_of(there); };
  if (!map.is_one_to_one()) return say("duplicated target devices", "");
  if (!own.devices.empty()) {
    if (!all_sources(map, [&](device each) { return declared(each, own.devices); }))
      return say("unexpected source devices", with_list(own.devices));
  } else if (!all_sources(map, [&](device each) { return exists(each, own); })) {
    return say("source devices with invalid indices", with_counts(own.counts));
  }
  if (!target) return {};
  if (!target->devices.empty()) {
    if (!all_targets(map, [&](device each) { return declared(each, target->devices); }))
      return say("unexpected target devices", with_list(target->devices));
  } else if (!all_targets(map, [&](device each) { return exists(each, *target); })) {
    return say("target devices with invalid indices", with_counts(target->counts));
  }
  return {};
}

const worker_devices* find(std::span<const worker_devices> group, std::string_view name) {
  const auto at =
      std::find_if(group.begin(), group.end(), [&](const worker_devices& each) { return each.name == name; });
  return at == group.end() ? nullptr : &*at;
}

}  // namespace

std::string broken_device_rule(std::span<const worker_devices> group, bool complete) {
  for (const worker_devices& each : group) {
    if (std::string broken = broken_declaration(each); !broken.empty()) return broken;
  }
  const auto has_maps = [](const worker_devices& each) { return each.record && !each.record->maps.empty(); };
  if (std::none_of(group.begin(), group.end(), has_maps)) return {};
  records_by_name records;
  for (const worker_devices& each : group) records.emplace(each.name, each.record);
  for (const worker_devices& source : group) {
    if (!has_maps(source)) continue;
    if (complete) {
      if (std::string broken = broken_targets(source, records); !broken.empty()) return broken;
    }
    for (const auto& [name, map] : source.record->maps) {
      const auto target = records.find(name);
      std::string broken = broken_map(source, name, map, target == records.end() ? nullptr : target->second);
      if (!broken.empty()) return broken;
    }
  }
  return {};
}

std::string broken_device_rule(const worker_devices& newcomer, std::size_t place,
                               std::span<const worker_devices> members) {
  if (!newcomer.record) return {};
  if (std::string broken = broken_declaration(newcomer); !broken.empty()) return broken;
  for (std::size_t i = 0; i <= members.size(); ++i) {
    if (i == place) {
      for (const auto& [name, map] : newcomer.record->maps) {
        const worker_devices* target = name == newcomer.name ? &newcomer : find(members, name);
        std::string broken = broken_map(newcomer, name, map, target ? target->record : nullptr);
        if (!broken.empty()) return broken;
      }
    }
    if (i == members.size()) break;
    const worker_devices& source = members[i];
    if (!source.record) continue;
    if (const auto map = source.record->maps.find(newcomer.name); map != source.record->maps.end()) {
      std::string broken = broken_map(source, newcomer.name, map->second, newcomer.record);
      if (!broken.empty()) return broken;
    }
  }
  return {};
}

std::string broken_device_rule(const worker_devices& source, const device_map& map, const worker_devices& target) {
  return source.record ? broken_map(source, target.name, map, target.record) : std::string();
}

std::shared_ptr<const device_maps_between> maps_between(const worker_devices& self, const worker_devices& other) {
  const auto from_to = [](const worker_devices& from, const worker_devices& to) -> const device_map* {
    if (!from.record) return nullptr;
    const auto found = from.record->maps.find(to.name);
    return found == from.record->maps.end() || found->second.empty() ? nullptr : &found->second;
  };
  const device_map* out = from_to(self, other);
  const device_map* in = from_to(other, self);
  if (!out && !in) return nullptr;
  auto result = std::make_shared<device_maps_between>();
  if (out) result->requests = *out;
  if (in) result->responses = in->inverse();
  return result;
}

std::vector<device> devices_in_use(const device_record& own, std::span<const device_map> responses) {
  std::set<device> all(own.devices.begin(), own.devices.end());
  const auto add = [&](const device_map& map) {
    for (const device_pair& each : map) {
      if (!each.from.is_cpu()) all.insert(each.from);
    }
  };
  if (own.devices.empty()) {
    for (const auto& [name, map] : own.maps) add(map);
    for (const device_map& map : responses) add(map);
  }
  return {all.begin(), all.end()};
}

device target_of(const message_route& route, device where, std::size_t index) {
  const device* target = route.map ? route.map->find(where) : nullptr;
  if (where.is_cpu()) return target ? *target : where;
  if (!target) {
    const std::string advice =
        route.placement && route.map
            ? fmt::format(", for which the {}, {}, has no entry; add one, or move the tensor",
                          route.response ? "inverse of the call's placement" : "placement of the call",
                          to_string(*route.map))
            : fmt::format(
                  ": only CPU tensors are supported by default; move it to the CPU, or configure a device map "
                  "(set_device_map){}",
                  route.response
                      ? fmt::format(" at {}, whose map for this worker leads results back", route.destination)
                      : std::string());
    throw_error(errc::bad_device,
                fmt::format("tensor {} of the {} is on {}{}: {} device mapping is not available for destination {}; "
                            "device {}",
                            index, route.response ? "response" : "request", to_string(where), advice,
                            route.response ? "Response" : "Request", route.destination, to_string(where)));
  }
  if (route.response && route.devices && !declared(where, *route.devices)) {
    throw_error(errc::bad_device,
                fmt::format("user-function output tensor {} is on device {}, which is not one of the input tensor "
                            "devices {}; destination {}",
                            index, to_string(where), text_of(*route.devices), route.destination));
  }
  return *target;
}

}  // namespace ferry::inline v0::detail
