#include <ferry/device/device.hpp>

#include <charconv>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/device/cpu_pool.hpp>
#include <ferry/device/traits.hpp>

namespace ferry::inline v0 {

std::string_view device_kind_name(device_kind kind) noexcept {
  switch (kind) {
    case device_kind::cpu: return "cpu";
    case device_kind::cuda: return "cuda";
  }
  return "unknown";
}

std::string to_string(device where) {
  if (where.is_cpu() && where.index == 0) return "cpu";
  return fmt::format("{}:{}", device_kind_name(where.kind), where.index);
}

device parse_device(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    throw_error(errc::bad_device,
                fmt::format("'{}' is not a device: {}; write \"cpu\" or \"cuda:<number>\"", text, why));
  };
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  device where;
  if (kind == "cuda") {
    where.kind = device_kind::cuda;
  } else if (kind != "cpu") {
    refuse(fmt::format("'{}' is no kind of device", kind));
  }
  if (colon != std::string_view::npos) {
    const std::string_view number = text.substr(colon + 1);
    const char* end = number.data() + number.size();
    const auto [stop, failure] = std::from_chars(number.data(), end, where.index);
    if (number.empty() || failure != std::errc{} || stop != end || where.index < 0) {
      refuse(fmt::format("'{}' is no device number", number));
    }
    if (where.is_cpu() && where.index != 0) refuse("there is one cpu, number 0");
  }
  return where;
}

void* device_traits<cpu>::allocate(device, std::size_t bytes) { return cpu_allocate(bytes); }

void device_traits<cpu>::deallocate(device, void* memory, std::size_t bytes) noexcept { cpu_deallocate(memory, bytes); }

const device_operations& operations_of(device_kind kind) {
  static constexpr device_operations cpu_operations = make_device_operations<cpu>();
  if (kind == device_kind::cpu) return cpu_operations;
  throw_error(errc::bad_device, fmt::format("this build of ferry has no support for devices of the kind '{}' ({})",
                                            device_kind_name(kind), static_cast<int>(kind)));
}

void check_device(device where) {
  const int count = operations_of(where.kind).count();
  if (where.index >= 0 && where.index < count) return;
  throw_error(errc::bad_device,
              fmt::format("there is no device {}:{}; this process has {} of the kind '{}'",
                          device_kind_name(where.kind), where.index, count, device_kind_name(where.kind)));
}

}  // namespace ferry::inline v0
