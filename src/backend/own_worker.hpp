#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ferry/backend/options.hpp>
#include <ferry/backend/worker_info.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/base/time.hpp>
#include <ferry/transport/reactor.hpp>

#include "event_reports.hpp"
#include "fence.hpp"
#include "local_incarnations.hpp"

namespace ferry::inline v0::detail {

/// What all rooms of the backend share: who this worker is, and whether it still takes part in its group. Thread-safe, but
/// for `self` and `group`, which joining writes while no other worker is let in.
struct own_worker {
  /// `owner` returns what keeps all rooms alive. Throws what rpc_options::check() throws.
  own_worker(const worker_config& config, rpc_options with, std::shared_ptr<reactor> loop, std::string machine,
             std::function<std::shared_ptr<void>()> owner)
      : options(std::move(with)),
        threads(std::move(loop)),
        self(config.name, config.rank == any_rank ? worker_id::max : config.rank),
        world_size(config.world_size),
        wanted_id(config.rank),
        metadata(config.metadata),
        host(std::move(machine)),
        init_timeout(config.init_timeout.value_or(config.rpc_timeout)),
        keep_alive(std::move(owner)) {
    options.check();
  }
  own_worker(const own_worker&) = delete;
  own_worker& operator=(const own_worker&) = delete;

  const rpc_options options;
  const std::shared_ptr<reactor> threads;
  worker_info self;
  const incarnation_id incarnation = incarnation_id::random();
  const local_incarnation here{incarnation};
  const int world_size;        ///< 0: the group is dynamic
  const int wanted_id;         ///< any_rank: the lowest free one
  const std::string metadata;  ///< for the others
  const std::string host;      ///< as in worker_record::host
  const timeout init_timeout;
  std::string group;  ///< the key that identifies connections of the group
  /// As in its greetings: the index of its entry in the log of a dynamic group, ~0 while that is being written.
  std::atomic<std::uint64_t> announced{0};
  std::atomic<bool> closing{false};
  std::atomic<request_handler*> handler{nullptr};
  detail::fence fence;
  event_reports events;
  const std::function<std::shared_ptr<void>()> keep_alive;

  [[nodiscard]] bool dynamic() const noexcept { return world_size == 0; }
  /// It closes, or takes no further part in the group.
  [[nodiscard]] bool ended() const noexcept { return closing.load() || fence.is_up(); }
};

}  // namespace ferry::inline v0::detail
