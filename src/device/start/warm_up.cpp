#include "warm_up.hpp"

#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/base/log.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/device/traits.hpp>

#include "../device_state.hpp"
#include "../memory/pinned_memory.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t warm_events = 64;         // marks of calls that are under way at the same time
constexpr std::size_t warm_waiting_events = 4;  // threads that wait at the same time
constexpr std::size_t warm_pinned_memory = std::size_t{16} << 20;

bool exists(device where) { return where.index >= 0 && where.index < operations_of(where.kind).count(); }

void make_events(std::vector<event>& into, std::size_t count, const stream& on, bool for_waiting) {
  for (std::size_t i = 0; i != count; ++i) {
    into.push_back(for_waiting ? event::for_waiting() : event());
    into.back().record(on);
  }
}

void warm_up_device(device_state& state) {
  state.operations->warm_up(state.where);
  std::vector<stream> streams;
  for (std::size_t i = 0; i != stream_pool_size(); ++i) streams.push_back(pool_stream(state.where));
  state.parked.warm_up(state);
  std::vector<event> events;
  make_events(events, warm_events, streams.front(), false);
  make_events(events, warm_waiting_events, streams.front(), true);
  add_pinned_memory(state.where, warm_pinned_memory);
}

}  // namespace

void warm_up_devices(std::span<const device> devices, std::string_view who) {
  static constinit std::mutex warming{};
  const auto begun = std::chrono::steady_clock::now();
  std::vector<std::string> names;
  {
    const std::lock_guard lock(warming);
    for (const device& where : devices) {
      if (where.is_cpu() || device_kind_name(where.kind) == "unknown" || !exists(where)) continue;
      device_state& state = state_of(where);
      if (state.operations->immediate || state.warm) continue;
      warm_up_device(state);
      state.warm = true;
      names.push_back(to_string(where));
    }
  }
  if (names.empty() || !log_enabled(log_level::info)) return;
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begun;
  log(log_level::info,
      fmt::format("{}: warmed up {} in {:.0f} ms: context, memory pool, {} streams, kernels and {} MiB of page-locked "
                  "memory each",
                  who, fmt::join(names, ", "), taken.count(), stream_pool_size(), warm_pinned_memory >> 20));
}

}  // namespace ferry::inline v0::detail
