#pragma once

// The members of a worker's group, as its backend knows them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/backend/device_map.hpp>
#include <ferry/backend/worker_info.hpp>
#include <ferry/base/time.hpp>

namespace ferry::inline v0 {

/// The worker that has a name or an id at present, and its incarnation: another worker may take either later.
struct located_worker {
  worker_info who = {};
  incarnation_id incarnation = {};  ///< none if the backend does not provide it
};

/// The destination of a call.
struct call_target {
  // NOLINTNEXTLINE(google-explicit-constructor): most callers give only the id
  call_target(worker_id to, incarnation_id its = {}, void* known = nullptr) noexcept
      : id(to), incarnation(its), record(known) {}
  worker_id id;
  incarnation_id incarnation;  ///< none: the worker that has the id at present
  /// The backend's own record of the worker, from agent::open(); null: the backend looks it up.
  void* record;
};

/// A backend implements workers(); the defaults describe a static group whose workers do not restart, without devices.
/// All members are thread-safe.
class group_view {
 public:
  group_view() = default;
  group_view(const group_view&) = delete;
  group_view& operator=(const group_view&) = delete;
  virtual ~group_view() = default;

  /// All workers of the group, this one included, by id.
  [[nodiscard]] virtual std::vector<worker_info> workers() const = 0;
  /// Workers join and leave the group while it runs.
  [[nodiscard]] virtual bool dynamic() const noexcept { return false; }
  /// Throws errc::unknown_worker, naming what was looked up.
  [[nodiscard]] virtual worker_info find(std::string_view name) const;
  [[nodiscard]] virtual worker_info find(worker_id id) const;
  /// The same for a call, which may carry the result. An unknown worker may require a lookup in the store: throws
  /// errc::rpc_timeout if that takes until the deadline.
  [[nodiscard]] virtual located_worker locate(std::string_view name, deadline until) const;
  [[nodiscard]] virtual located_worker locate(worker_id id, deadline until) const;
  /// The worker of that incarnation only, as reported by another worker: this one's list of members may be behind.
  /// Throws errc::peer_lost if it is no longer a member, errc::rpc_timeout as above.
  [[nodiscard]] virtual located_worker locate(const call_target& whom, deadline until) const;
  /// Whether that incarnation has certainly ended. Never blocks: if a newer list of members is needed to decide, it is
  /// requested, and the answer is false until it has arrived. `question` is owned by the caller: zero at first, and the
  /// same variable in every call about that incarnation.
  [[nodiscard]] virtual bool is_over(const call_target& whom, std::uint64_t& question) const;
  /// Something waits for a worker that has not answered for a while. If that worker has ended unnoticed, the backend
  /// finds out, by conclusive evidence only: silence or unreachability is not. Cheap; may be repeated.
  virtual void seek(const call_target& whom) const noexcept { (void)whom; }
  /// Blocks until the group has a worker of that name. Throws errc::rpc_timeout, and if no worker can join any more
  /// what find() throws.
  [[nodiscard]] virtual worker_info wait_for(std::string_view name, deadline until) const;
  /// Brings workers() up to date where it may lag (dynamic groups): includes every worker that had joined before the
  /// call. Blocks until the deadline at most. False: it could not.
  virtual bool update(deadline until) const {
    (void)until;
    return true;
  }

  /// What a worker gave as worker_config::metadata. Throws errc::unknown_worker.
  [[nodiscard]] virtual std::string metadata(worker_id id) const;
  /// The devices beside the CPU that messages of this worker may be on: rpc_options::devices, else those in the device
  /// maps from and to it.
  [[nodiscard]] virtual std::vector<device> devices() const { return {}; }
  /// False only if there are none, neither for this worker nor for a single message. Cheap.
  [[nodiscard]] virtual bool uses_devices() const noexcept { return true; }
  /// The device maps for requests to a member, and for the responses to its requests. Throws errc::unknown_worker.
  [[nodiscard]] virtual device_map request_map(worker_id to) const;
  [[nodiscard]] virtual device_map response_map(worker_id to) const;
};

}  // namespace ferry::inline v0
