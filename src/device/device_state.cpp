#include "device_state.hpp"

#include <array>
#include <memory>

#include <ferry/base/error.hpp>
#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t kinds = 256;

// The devices of one kind.
struct kind_state {
  explicit kind_state(int count) : devices(static_cast<std::size_t>(count)) {}
  std::vector<std::atomic<device_state*>> devices;
};

constinit std::array<std::atomic<kind_state*>, kinds> states_of_kinds{};
constinit std::mutex making{};

device_state& make_state(device where) {
  const device_operations& operations = operations_of(where.kind);
  check_device(where);
  const std::lock_guard lock(making);
  std::atomic<kind_state*>& kind = states_of_kinds[static_cast<std::size_t>(where.kind)];
  if (!kind.load(std::memory_order_relaxed)) {
    kind.store(new kind_state(operations.count()), std::memory_order_release);
  }
  auto& devices = kind.load(std::memory_order_relaxed)->devices;
  if (static_cast<std::size_t>(where.index) >= devices.size()) {
    throw_error(errc::bad_device, "there were fewer devices of the kind when this process first used one than now: " +
                                      to_string(where) + " is new");
  }
  std::atomic<device_state*>& place = devices[static_cast<std::size_t>(where.index)];
  if (!place.load(std::memory_order_relaxed)) {
    auto fresh = std::make_unique<device_state>();
    fresh->operations = &operations;
    fresh->where = where;
    if (!operations.immediate) streams_in_use.store(true, std::memory_order_relaxed);
    place.store(fresh.release(), std::memory_order_release);
  }
  return *place.load(std::memory_order_relaxed);
}

}  // namespace

constinit std::atomic<bool> streams_in_use{false};

device_state& state_of(device where) {
  const kind_state* kind = states_of_kinds[static_cast<std::size_t>(where.kind)].load(std::memory_order_acquire);
  if (kind && where.index >= 0 && static_cast<std::size_t>(where.index) < kind->devices.size()) {
    device_state* state = kind->devices[static_cast<std::size_t>(where.index)].load(std::memory_order_acquire);
    if (state) return *state;
  }
  return make_state(where);
}

}  // namespace ferry::inline v0::detail
