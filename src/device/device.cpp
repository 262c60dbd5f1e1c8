#include <ferry/device/device.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/device/cpu_pool.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/traits.hpp>

#include "../base/parse_number.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// The kinds of this process by number. Kinds are added, never removed.
constinit std::array<std::atomic<const device_operations*>, 256> registered_kinds{};
constinit std::mutex registering{};

const device_operations* find_operations(device_kind kind) noexcept {
  switch (kind) {
    case device_kind::cpu: return &detail::operations_for<cpu>;
    case device_kind::cuda: return &detail::operations_for<cuda>;
  }
  return registered_kinds[static_cast<std::size_t>(kind)].load(std::memory_order_acquire);
}

const device_operations* find_operations(std::string_view name) noexcept {
  for (std::size_t number = 0; number != registered_kinds.size(); ++number) {
    const device_operations* found = find_operations(static_cast<device_kind>(number));
    if (found && found->name == name) return found;
  }
  return nullptr;
}

// "cpu, cuda, npu"
std::string known_kinds() {
  std::string names;
  for (std::size_t number = 0; number != registered_kinds.size(); ++number) {
    const device_operations* found = find_operations(static_cast<device_kind>(number));
    if (found) names += fmt::format("{}{}", names.empty() ? "" : ", ", found->name);
  }
  return names;
}

}  // namespace

void register_device(const device_operations& operations) {
  const auto usable = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  if (operations.name.empty() || !std::all_of(operations.name.begin(), operations.name.end(), usable)) {
    throw_error(
        errc::invalid_argument,
        fmt::format("'{}' is not a valid name for a kind of device: use lower-case letters, digits and underscores",
                    operations.name));
  }
  const std::lock_guard lock(registering);
  const device_operations* namesake = find_operations(operations.name);
  const device_operations* same_number = find_operations(operations.kind);
  if (namesake && namesake->kind == operations.kind) return;
  if (namesake || same_number) {
    throw_error(
        errc::invalid_argument,
        fmt::format("the kind of device '{}' ({}) cannot be registered: this program has '{}' ({})", operations.name,
                    static_cast<int>(operations.kind), (namesake ? namesake : same_number)->name,
                    static_cast<int>((namesake ? namesake : same_number)->kind)));
  }
  registered_kinds[static_cast<std::size_t>(operations.kind)].store(&operations, std::memory_order_release);
}

}  // namespace detail

std::string_view device_kind_name(device_kind kind) noexcept {
  const device_operations* found = detail::find_operations(kind);
  return found ? found->name : "unknown";
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
  const device_operations* operations = detail::find_operations(kind);
  if (!operations)
    refuse(fmt::format("'{}' is not a kind of device registered in this program ({})", kind, detail::known_kinds()));
  where.kind = operations->kind;
  if (colon != std::string_view::npos) {
    const std::string_view number = text.substr(colon + 1);
    const auto index = detail::parse_number(number);
    if (!index || *index < 0) refuse(fmt::format("'{}' is not a device number", number));
    where.index = *index;
    if (where.is_cpu() && where.index != 0) refuse("there is one cpu, number 0");
  }
  return where;
}

void* device_traits<cpu>::allocate(device, std::size_t bytes, stream_handle) { return cpu_allocate(bytes); }

void device_traits<cpu>::deallocate(device, void* memory, std::size_t bytes, stream_handle) noexcept {
  cpu_deallocate(memory, bytes);
}

namespace detail {

void* allocate_plain_staging(device, std::size_t bytes) { return cpu_allocate(bytes); }
void deallocate_plain_staging(device, void* memory, std::size_t bytes) noexcept { cpu_deallocate(memory, bytes); }

}  // namespace detail

const device_operations& operations_of(device_kind kind) {
  const device_operations* found = detail::find_operations(kind);
  if (found) return *found;
  throw_error(errc::bad_device, fmt::format("this program has no support for devices of the kind '{}' ({}); it has: {}",
                                            device_kind_name(kind), static_cast<int>(kind), detail::known_kinds()));
}

void check_device(device where) {
  const int count = operations_of(where.kind).count();
  if (where.index >= 0 && where.index < count) return;
  const std::string obstacle = count == 0 ? operations_of(where.kind).obstacle() : std::string();
  throw_error(errc::bad_device, fmt::format("there is no device {}:{}; this process has {} of the kind '{}'{}{}",
                                            device_kind_name(where.kind), where.index, count,
                                            device_kind_name(where.kind), obstacle.empty() ? "" : ": ", obstacle));
}

}  // namespace ferry::inline v0
