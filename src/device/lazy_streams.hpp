#pragma once

// Streams that are taken from the pool when they are first needed.

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <ferry/device/current.hpp>
#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {

/// One stream for each of some devices, taken when code first asks for it: a call that uses one device of eight takes one
/// stream, and shares none with calls on the others. Thread-safe.
class lazy_streams {
 public:
  explicit lazy_streams(std::vector<device> devices) : devices_(std::move(devices)) {}
  lazy_streams(const lazy_streams&) = delete;
  lazy_streams& operator=(const lazy_streams&) = delete;

  [[nodiscard]] const std::vector<device>& devices() const noexcept { return devices_; }
  [[nodiscard]] bool covers(device where) const noexcept {
    return std::find(devices_.begin(), devices_.end(), where) != devices_.end();
  }
  /// The stream of one of the devices. Throws what pool_stream() throws.
  [[nodiscard]] stream take(device where) {
    const std::lock_guard lock(mutex_);
    for (const stream& each : taken_) {
      if (each.device() == where) return each;
    }
    return taken_.emplace_back(pool_stream(where));
  }
  /// Those taken so far.
  [[nodiscard]] std::vector<stream> taken() const {
    const std::lock_guard lock(mutex_);
    return taken_;
  }

 private:
  const std::vector<device> devices_;
  mutable std::mutex mutex_;
  std::vector<stream> taken_;
};

/// What a thread has chosen as its current stream of a device.
struct stream_choice {
  device where;
  void* handle = nullptr;          // null: not taken from `source` yet
  lazy_streams* source = nullptr;  // of a choice that is made when it is asked for
  bool any = true;                 // false: nothing is chosen, the default stream is current
};

/// Makes the current stream of a device the one that `source` has for it, once it is asked for; the source must outlive the
/// choice. Returns the former choice. Throws errc::bad_device, errc::resource_exhausted.
stream_choice choose_lazily(device where, lazy_streams& source);
/// As set_current_stream, but takes no stream to say what the former choice was.
stream_choice choose_stream(const stream& now);
/// Takes a choice back. Never fails for one that was made before.
void restore_choice(const stream_choice& former) noexcept;

/// The current stream of a device if it is known without taking one.
std::optional<stream> known_current_stream(device where);

}  // namespace ferry::inline v0::detail
