// Device maps in an agent: what the members publish about their devices, and where the tensors of a message arrive.

#include <algorithm>

#include <ferry/base/error.hpp>

#include "../agent/native_agent.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

bool all_on_cpu(const outgoing_message& message) {
  return std::all_of(message.tensors.begin(), message.tensors.end(),
                     [](const tensor& each) { return each.device().is_cpu(); });
}

void place(outgoing_message& message, const message_route& route) {
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
  place(message, {response, destination, placement, nullptr});
}

}  // namespace

worker_record native_core::own_record() const {
  worker_record record;
  record.who = self_;
  record.incarnation = incarnation_;
  record.host = host_;
  record.addresses = advertised_;
  record.metadata = metadata_;
  record.devices = devices_;
  record.serves_store = group_store()->serves();
  return record;
}

peer& native_core::admit(worker_record record) {
  record.maps = maps_between(own_devices(), record.for_checks());
  if (record.maps) maps_known_.store(true, std::memory_order_release);
  peer& admitted = peers_.admit(std::move(record));
  group_changes_.fetch_add(1, std::memory_order_release);
  return admitted;
}

void native_core::check_devices_of(const std::vector<worker_record>& group) const {
  std::vector<worker_devices> all;
  all.reserve(group.size());
  for (const worker_record& each : group) all.push_back(each.for_checks());
  if (const std::string broken = broken_device_rule(all, true); !broken.empty())
    throw_error(errc::invalid_argument, broken);
}

void native_core::check_devices_fit() const {
  if (const std::string broken = log_->members().device_conflict(own_record()); !broken.empty())
    throw_error(errc::invalid_argument, broken);
}

// Called for every request.
std::vector<device> native_core::devices() const {
  if (!devices_->devices.empty()) return declared_devices_;
  return used_devices_.with(
      group_changes_.load(std::memory_order_acquire),
      [&] {
        std::vector<device_map> back;
        if (maps_known_.load(std::memory_order_acquire)) {
          for (const peer* each : peers_.all()) {
            const std::lock_guard lock(each->mutex);
            if (each->present() && each->record.maps) back.push_back(each->record.maps->responses);
          }
        }
        return devices_in_use(*devices_, back);
      },
      [](const std::vector<device>& used) { return used; });
}

// Declared devices are a complete list. Without a declaration, a placement may use any existing device.
bool native_core::takes_tensors_on(device where) const noexcept {
  const auto& declared = devices_->devices;
  return declared.empty() || std::find(declared.begin(), declared.end(), where) != declared.end();
}

std::shared_ptr<const device_maps_between> native_core::maps_to(worker_id id) const {
  (void)find(id);
  const peer* there = peers_.at(id);
  const std::lock_guard lock(there->mutex);
  return there->record.maps;
}

void native_core::place_tensors(const call_target& to, outgoing_message& message, bool response,
                                const device_map* placement) const {
  message.targets.clear();
  if (message.tensors.empty() && !placement) return;
  if (!placement && !maps_known_.load(std::memory_order_acquire) && all_on_cpu(message)) return;
  const peer* const there = to.record ? static_cast<const peer*>(to.record) : peers_.at(to.id);
  if (!there) return (void)find(to.id);  // throws
  std::unique_lock lock(there->mutex);
  // A message to a predecessor is not sent, and the maps of its successor do not apply.
  if (to.incarnation.value != 0 && there->state != peer_state::unknown && there->record.incarnation != to.incarnation)
    return;
  const worker_info who = there->record.who;
  const std::shared_ptr<const device_record> devices = there->record.devices;
  const std::shared_ptr<const device_maps_between> maps = there->record.maps;
  lock.unlock();
  if (placement && !response) {
    const std::string broken = broken_device_rule(own_devices(), *placement, {who.name(), devices.get()});
    if (!broken.empty()) throw_error(errc::invalid_argument, "the placement of a call: " + broken);
  }
  const device_map* map = placement;
  if (!map && maps) map = response ? &maps->responses : &maps->requests;
  place(message, {response, who.name(), map, response && !devices_->devices.empty() ? &devices_->devices : nullptr});
}

}  // namespace detail

void agent::place_request(const call_target& to, outgoing_message& request, const device_map* placement) const {
  detail::place_by(*this, to, request, false, placement);
}

void agent::place_response(const call_target& to, outgoing_message& response, const device_map* placement) const {
  detail::place_by(*this, to, response, true, placement);
}

}  // namespace ferry::inline v0
