#include "device_placement.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <ferry/backend/agent.hpp>
#include <ferry/base/error.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

bool all_on_cpu(const outgoing_message& message) {
  return std::all_of(message.tensors.begin(), message.tensors.end(),
                     [](const tensor& each) { return each.device().is_cpu(); });
}

void place_on(outgoing_message& message, const message_route& route) {
  if (all_on_cpu(message) && !(route.map && route.map->find(device()))) return;
  message.targets.reserve(message.tensors.size());
  for (std::size_t i = 0; i != message.tensors.size(); ++i)
    message.targets.push_back(target_of(route, message.tensors[i].device(), i));
}

// For an agent without device maps.
void place_by(const agent& own, const call_target& to, outgoing_message& message, bool response,
              const device_map* placement) {
  message.targets.clear();
  if (!placement && all_on_cpu(message)) return;
  if (placement && !placement->is_one_to_one())
    throw_error(errc::invalid_argument, "the placement of a call is not one-to-one: " + to_string(*placement));
  const std::string destination = own.members().find(to.id).name();
  place_on(message, {response, destination, placement, nullptr, placement != nullptr});
}

}  // namespace

device_placement::device_placement(const own_worker& own, device_record record)
    : own_(own), record_(std::make_shared<const device_record>(std::move(record))) {}

std::shared_ptr<const device_maps_between> device_placement::maps_with(const worker_devices& member) {
  auto maps = maps_between(own_devices(), member);
  if (maps) maps_known_.store(true, std::memory_order_release);
  return maps;
}

// Called for every request.
std::vector<device> device_placement::in_use(std::uint64_t changes,
                                             const std::function<std::vector<device_map>()>& response_maps) const {
  if (!record_->devices.empty()) return declared_;
  return used_.with(
      changes, [&] { return devices_in_use(*record_, maps_known() ? response_maps() : std::vector<device_map>()); },
      [](const std::vector<device>& used) { return used; });
}

bool device_placement::takes_tensors_on(device where) const noexcept {
  const auto& declared = record_->devices;
  return declared.empty() || std::find(declared.begin(), declared.end(), where) != declared.end();
}

bool device_placement::concerns(const outgoing_message& message, const device_map* placement) const {
  if (placement) return true;
  return !message.tensors.empty() && (maps_known() || !all_on_cpu(message));
}

void device_placement::place(outgoing_message& message, bool response, const worker_devices& member,
                             const device_maps_between* maps, const device_map* placement) const {
  if (placement && !response) {
    const std::string broken = broken_device_rule(own_devices(), *placement, member);
    if (!broken.empty()) throw_error(errc::invalid_argument, "the placement of a call: " + broken);
  }
  const device_map* map = placement;
  if (!map && maps) map = response ? &maps->responses : &maps->requests;
  place_on(message, {response, member.name, map, response && !record_->devices.empty() ? &record_->devices : nullptr,
                     placement != nullptr});
}

}  // namespace detail

void agent::place_request(const call_target& to, outgoing_message& request, const device_map* placement) const {
  detail::place_by(*this, to, request, false, placement);
}

void agent::place_response(const call_target& to, outgoing_message& response, const device_map* placement) const {
  detail::place_by(*this, to, response, true, placement);
}

}  // namespace ferry::inline v0
