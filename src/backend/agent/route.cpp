// How a worker is reached: the route in use, and why each better one is not used.

#include <algorithm>

#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "../../base/peer_log.hpp"
#include "native_core.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

device_route route_between(const connection& over, device from, device to) {
  channel_choice choice = choose_channel(known_channels(), path_between(over, from, to));
  return {from, to, choice.used ? std::string(choice.used->name) : std::string(), std::move(choice.skipped)};
}

void add(std::vector<device_route>& routes, const connection& over, device from, device to) {
  const bool there = std::any_of(routes.begin(), routes.end(),
                                 [&](const device_route& each) { return each.from == from && each.to == to; });
  if (!there) routes.push_back(route_between(over, from, to));
}

}  // namespace

route_info native_core::route(worker_id id) const {
  (void)group_->find(id);
  route_info result;
  const peer* there = peers_.at(id);
  if (!there) return result;
  std::unique_lock lock(there->mutex);
  const std::shared_ptr<outgoing_link> link = there->link;
  const std::shared_ptr<const device_maps_between> maps = there->maps;
  const shared_record record = there->record;
  lock.unlock();
  const auto over = link ? link->current_connection() : nullptr;
  if (!over) {
    if (link) result.skipped = link->failed_routes();
    return result;
  }
  result.transport = over->transport_name();
  result.description = over->description();
  result.skipped = ends_.better_than(result.transport, record->addresses, link->failed_routes());
  add(result.devices, *over, {}, {});
  if (maps) {
    for (const device_map* map : {&maps->requests, &maps->responses}) {
      for (const device_pair& each : *map) add(result.devices, *over, each.from, each.to);
    }
  }
  return result;
}

void native_core::log_route(const worker_info& to) const noexcept {
  if (!log_enabled(log_level::info)) return;
  try {
    log_about(to.id(), log_level::info, [&] {
      return fmt::format("{} reaches {} over {}", own_.self.name(), to.name(), to_string(route(to.id())));
    });
  } catch (const std::exception& e) {
    log(log_level::info, fmt::format("{}: cannot describe a route: {}", own_.self.name(), e.what()));
  }
}

}  // namespace detail

std::string to_string(const route_info& route) {
  const auto reasons = [](const std::vector<rejected_route>& skipped) {
    std::string text;
    for (const rejected_route& each : skipped) {
      text += fmt::format("{}not {}: {}", text.empty() ? " (" : "; ", each.name, each.reason);
    }
    return text.empty() ? text : text + ")";
  };
  if (route.transport.empty()) return "no connection is open" + reasons(route.skipped);
  std::string text = route.description + reasons(route.skipped);
  for (const device_route& each : route.devices) {
    text += fmt::format("\n  {} -> {}: {}{}", to_string(each.from), to_string(each.to),
                        each.channel.empty() ? "no channel" : each.channel, reasons(each.skipped));
  }
  return text;
}

}  // namespace ferry::inline v0
