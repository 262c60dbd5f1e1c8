#pragma once

// Devices: where the bytes of a tensor live.

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace ferry::inline v0 {

/// A kind of device. The numbers are stable: they travel on the wire. Kinds that are not ferry's own have numbers from
/// first_foreign_kind on (register_devices in ferry/device/traits.hpp).
enum class device_kind : std::uint8_t { cpu = 0, cuda = 1 };

/// Below are ferry's own kinds of devices, from here on those of users.
inline constexpr auto first_foreign_kind = static_cast<device_kind>(128);

/// "cpu", "cuda", the name of a registered kind; "unknown" for a number that is none. Thread-safe.
[[nodiscard]] std::string_view device_kind_name(device_kind kind) noexcept;

/// One device: a kind and a number among the devices of that kind. There is one CPU, number 0. A plain value: that the
/// device exists is checked when something is put on it (check_device).
struct device {
  device_kind kind = device_kind::cpu;
  int index = 0;

  [[nodiscard]] constexpr bool is_cpu() const noexcept { return kind == device_kind::cpu; }
  [[nodiscard]] constexpr bool is_cuda() const noexcept { return kind == device_kind::cuda; }
  friend constexpr auto operator<=>(const device&, const device&) noexcept = default;
};

/// "cpu", "cuda:1", "<kind>:<number>" of a registered kind. parse_device reads it back.
[[nodiscard]] std::string to_string(device where);

/// The device named by `text`: "cpu", "cuda:1", or of a registered kind; "cuda" alone means "cuda:0". Does not ask
/// whether it exists. Throws errc::bad_device for anything else. Thread-safe.
[[nodiscard]] device parse_device(std::string_view text);

}  // namespace ferry::inline v0
