#pragma once

// Devices: where the bytes of a tensor are stored.

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace ferry::inline v0 {

/// A kind of device. The numbers are stable: they are sent on the wire. User-defined kinds have numbers from
/// first_foreign_kind on (register_devices in ferry/device/traits.hpp).
enum class device_kind : std::uint8_t { cpu = 0, cuda = 1 };

/// Smaller numbers are ferry's own kinds of devices, this and larger ones are user-defined.
inline constexpr auto first_foreign_kind = static_cast<device_kind>(128);

/// "cpu", "cuda", the name of a registered kind; "unknown" for any other number. Thread-safe.
[[nodiscard]] std::string_view device_kind_name(device_kind kind) noexcept;

/// One device: a kind and a number among the devices of that kind. There is one CPU, number 0. A plain value: whether
/// the device exists is checked when it is used (check_device).
struct device {
  device_kind kind = device_kind::cpu;
  int index = 0;

  [[nodiscard]] constexpr bool is_cpu() const noexcept { return kind == device_kind::cpu; }
  [[nodiscard]] constexpr bool is_cuda() const noexcept { return kind == device_kind::cuda; }
  friend constexpr auto operator<=>(const device&, const device&) noexcept = default;
};

/// "cpu", "cuda:1", "<kind>:<number>" of a registered kind. parse_device reads it back.
[[nodiscard]] std::string to_string(device where);

/// The device named by `text`: "cpu", "cuda:1", or of a registered kind; "cuda" alone means "cuda:0". Does not check
/// whether it exists. Throws errc::bad_device for anything else. Thread-safe.
[[nodiscard]] device parse_device(std::string_view text);

}  // namespace ferry::inline v0
