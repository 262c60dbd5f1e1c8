#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <ferry/wire/message.hpp>

#include "../made_from_members.hpp"
#include "../own_worker.hpp"
#include "device_checks.hpp"

namespace ferry::inline v0::detail {

/// The devices of this worker, and where the tensors of its messages arrive. Thread-safe.
class device_placement {
 public:
  device_placement(const own_worker& own, device_record record);
  device_placement(const device_placement&) = delete;
  device_placement& operator=(const device_placement&) = delete;

  /// What this worker publishes.
  [[nodiscard]] const std::shared_ptr<const device_record>& record() const noexcept { return record_; }
  /// Those between this worker and a new member; null: there are none.
  [[nodiscard]] std::shared_ptr<const device_maps_between> maps_with(const worker_devices& member);
  /// There is a map from or to this worker.
  [[nodiscard]] bool maps_known() const noexcept { return maps_known_.load(std::memory_order_acquire); }
  /// Whether messages may have tensors on devices other than the CPU without a placement of their own.
  [[nodiscard]] bool uses_devices() const noexcept { return maps_known() || !record_->devices.empty(); }
  /// The devices that messages of this worker may be on beside the CPU. `response_maps` lists the maps of responses to
  /// present members, of which there have been `changes`.
  [[nodiscard]] std::vector<device> in_use(std::uint64_t changes,
                                           const std::function<std::vector<device_map>()>& response_maps) const;
  /// Whether tensors may arrive there. Declared devices are a complete list; without a declaration, a placement may use any
  /// device that exists.
  [[nodiscard]] bool takes_tensors_on(device where) const noexcept;

  /// Whether the tensors of this message may arrive anywhere but on the CPU. Throws if one is undefined.
  [[nodiscard]] bool concerns(const outgoing_message& message, const device_map* placement) const;
  /// Sets the devices that the tensors of a message to `member` arrive on: by the placement of the call, else by the maps
  /// of the group. Throws errc::invalid_argument, errc::bad_device.
  void place(outgoing_message& message, bool response, const worker_devices& member, const device_maps_between* maps,
             const device_map* placement) const;

 private:
  [[nodiscard]] worker_devices own_devices() const noexcept { return {own_.self.name(), record_.get()}; }

  const own_worker& own_;
  const std::shared_ptr<const device_record> record_;
  const std::vector<device> declared_ = devices_in_use(*record_, {});
  made_from_members<std::vector<device>> used_;  // the result of in_use(), unless they are declared
  std::atomic<bool> maps_known_{false};
};

}  // namespace ferry::inline v0::detail
