#pragma once

// The order of updates of parameters at one worker: optimizers of several trainers write the same parameters there, in calls of
// their own and within passes.

#include <memory>
#include <mutex>
#include <span>

#include <ferry/device/device.hpp>

namespace ferry::inline v0 {

class worker;
namespace detail {
class update_turns;
}

namespace dist_autograd {

/// The turns of one worker. Copies are the same ones. Thread-safe.
class worker_updates {
 public:
  /// Of the current worker. Throws errc::not_initialized.
  worker_updates();
  explicit worker_updates(const worker& of);

  // For the library.
  [[nodiscard]] detail::update_turns& turns() const noexcept { return *turns_; }

 private:
  std::shared_ptr<detail::update_turns> turns_;
};

/// The turn of an update, for its lifetime: others of the same worker come before or after it, on devices, too. For the authors of
/// optimizers. The thread must not wait for anything meanwhile that another update could hold up: it makes no calls.
class [[nodiscard]] update_turn {
 public:
  /// Waits for its turn. The current streams of the devices wait for the updates before. Throws errc::bad_device,
  /// errc::device_failure.
  update_turn(const worker_updates& at, std::span<const device> on);
  /// What the current streams of the devices have been given by now is what the next ones wait for.
  ~update_turn();
  update_turn(const update_turn&) = delete;
  update_turn& operator=(const update_turn&) = delete;

 private:
  const worker_updates at_;
  const std::span<const device> on_;
  std::unique_lock<std::mutex> lock_;
};

/// The current streams wait for the updates that optimizers have begun at the current worker; the host does not. Methods of remote modules,
/// and calls on references to parameters on devices, begin so. A handler of one's own that reads parameters on devices and is not
/// called on such a reference calls it, unless the devices' default streams are used for everything (those of devices that are not
/// among worker::devices()). Throws errc::not_initialized, errc::device_failure.
void wait_for_updates();

}  // namespace dist_autograd
}  // namespace ferry::inline v0
