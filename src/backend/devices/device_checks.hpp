#pragma once

// Whether the device maps of a group fit together, and what follows from them. Functions over what the workers have
// published, so that all workers come to the same result; they use neither devices nor connections.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device_record.hpp"

namespace ferry::inline v0::detail {

/// One worker, as input to the checks.
struct worker_devices {
  std::string_view name;
  const device_record* record = nullptr;  ///< null: it did not publish one
};

/// The first rule that `group`, in the order of ranks, breaks, as text; empty: none. `complete`: a map may name members
/// only.
[[nodiscard]] std::string broken_device_rule(std::span<const worker_devices> group, bool complete);
/// The same for `members`, which break none, with `newcomer` added at `place`.
[[nodiscard]] std::string broken_device_rule(const worker_devices& newcomer, std::size_t place,
                                             std::span<const worker_devices> members);
/// The same for one map of `source` alone.
[[nodiscard]] std::string broken_device_rule(const worker_devices& source, const device_map& map,
                                             const worker_devices& target);

/// The maps between a worker and one other.
struct device_maps_between {
  device_map requests;   ///< of this worker's requests to the other; the responses to them use the inverse
  device_map responses;  ///< of this worker's responses to the other
};
/// Null: there are none. Both must have passed the checks.
[[nodiscard]] std::shared_ptr<const device_maps_between> maps_between(const worker_devices& self,
                                                                      const worker_devices& other);

/// The devices that messages of a worker may be on beside the CPU: the declared ones, else those in its own maps and in
/// the maps of others to it. Sorted.
[[nodiscard]] std::vector<device> devices_in_use(const device_record& own, std::span<const device_map> responses);

/// What determines the devices that the tensors of a message arrive on.
struct message_route {
  bool response = false;
  std::string_view destination;
  const device_map* map = nullptr;               ///< null: there is none
  const std::vector<device>* devices = nullptr;  ///< of a response: those of this worker; null: any that the map has
  bool placement = false;                        ///< the map is that of the call, for the response its inverse
};
/// Where the message's index-th tensor, which is on `where`, arrives. Throws errc::bad_device.
[[nodiscard]] device target_of(const message_route& route, device where, std::size_t index);

}  // namespace ferry::inline v0::detail
