#include "host_exchange.hpp"

#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../../base/peer_log.hpp"
#include "../../device/memory/shared_arena.hpp"

namespace ferry::inline v0::detail {

bool can_share_host_memory(std::uint64_t features, const transport_options& options) noexcept {
  return options.share_host_memory && (features & (feature_control | feature_observer)) == 0 &&
         (features & feature_device_tensors) != 0 && shared_arena::of_process() != nullptr;
}

shared_host_memory take_host_memory(const unique_fd& descriptor, std::string_view peer) {
  shared_host_memory taken{.offered = true};
  const auto refused = [&](std::string_view why) {
    log_about("memory of other processes", log_level::info,
              [&] { return fmt::format("tensors of {} are not read in place: {}", peer, why); });
  };
  if (!descriptor) {
    refused("this process is short of descriptors");
    return taken;
  }
  try {
    taken.theirs = std::make_shared<peer_memory>(descriptor);
  } catch (const error& why) {
    refused(why.message());
  }
  return taken;
}

std::shared_ptr<direct_memory> share_host_memory(const shared_rings& rings, shared_host_memory host) {
  return std::make_shared<direct_memory>(rings, unique_fd(), std::vector<offered_pool>(),
                                         std::vector<std::shared_ptr<imported_pool>>(), no_gpu_memory, std::move(host));
}

}  // namespace ferry::inline v0::detail
