#include <ferry/nn/remote_module.hpp>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../base/parse_number.hpp"
#include "../rpc/references/table/reference_state.hpp"
#include "../rpc/references/table/reference_table.hpp"
#include "../rpc/worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::string_view rank_prefix = "rank:";

[[noreturn]] void refuse_place(std::string_view where, std::string_view why) {
  throw_error(
      errc::invalid_argument,
      fmt::format(
          "the place of a module '{}' {}: it is \"<worker>/<device>\", \"rank:<number>/<device>\", one of these "
          "without the device, or a device of this worker",
          where, why));
}

std::optional<device> device_from(std::string_view text) {
  try {
    return parse_device(text);
  } catch (const error&) {
    return std::nullopt;
  }
}

void take_worker(std::string_view where, std::string_view worker, module_place& place) {
  if (worker.find(':') == std::string_view::npos) {
    place.worker = worker;
    return;
  }
  if (!worker.starts_with(rank_prefix)) {
    refuse_place(where, fmt::format("has a ':' in its worker '{}', which is not rank:<number>", worker));
  }
  const std::string_view digits = worker.substr(rank_prefix.size());
  place.rank = parse_number<std::int32_t>(digits);
  if (!place.rank || *place.rank < 0) {
    refuse_place(where, fmt::format("has '{}' where the number of a rank should be", digits));
  }
}

}  // namespace

module_place parse_module_place(std::string_view where) {
  module_place place;
  if (where.empty()) refuse_place(where, "is empty");
  const std::size_t slash = where.find('/');
  if (slash == std::string_view::npos) {
    if (const std::optional<device> here = device_from(where)) {
      place.on = *here;
    } else {
      take_worker(where, where, place);
    }
    return place;
  }
  if (where.find('/', slash + 1) != std::string_view::npos) refuse_place(where, "has more than one '/'");
  if (slash == 0) refuse_place(where, "names no worker before its '/'");
  const std::string_view on = where.substr(slash + 1);
  if (on.empty()) {
    throw_error(errc::bad_device, fmt::format("the place of a module '{}' names no device after its '/'", where));
  }
  take_worker(where, where.substr(0, slash), place);
  place.on = parse_device(on);
  return place;
}

worker_info find_worker(worker_core& from, const module_place& place) {
  const group_view& group = from.agent().members();
  if (place.rank) return group.find(worker_id{*place.rank});
  return place.worker.empty() ? attachment_owner(from).info() : group.find(place.worker);
}

bool has_device_map(const reference_handle& owner, const call_options& calls) {
  if (calls.placement.get() != nullptr) return true;
  const worker_id to = owner.owner().id();
  return !owner.usable().table->worker()->agent().members().request_map(to).empty();
}

}  // namespace ferry::inline v0::detail
