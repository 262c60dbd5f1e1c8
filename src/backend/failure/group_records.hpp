#pragma once

#include <functional>
#include <string>

#include <ferry/backend/worker_info.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/base/time.hpp>

#include "../links/control.hpp"
#include "../links/peers.hpp"

namespace ferry::inline v0::detail {

/// Something that the group's store is to record, and, for log messages, what that says.
struct store_record {
  std::function<void()> write;  // empty: nothing
  std::string what;
};

/// How the members of a group learn of each other's ends, beside connections: failure detection asks this of the group.
/// Thread-safe.
class group_records {
 public:
  /// Whether this worker's statements about others count: in a dynamic group its own entry must be in the log first, and
  /// it must have read it. May be called with the mutex of a peer held, as may the next two.
  [[nodiscard]] virtual bool is_member() const noexcept = 0;
  /// Whether others may have a record of it: also while its entry is being written.
  [[nodiscard]] virtual bool is_announced() const noexcept = 0;
  /// Whether members read every end in a log. Without one a worker is told of ends on connections only.
  [[nodiscard]] virtual bool has_log() const noexcept = 0;

  /// The group depends on that worker without calling it: begins to watch it. With the mutex of its peer held.
  virtual void begin_to_watch(liveness& whom) noexcept = 0;
  /// Asks in the log whether a member lives that this worker has never reached; reads its answer.
  virtual void ask_for_life(peer& whom, incarnation_id incarnation) noexcept = 0;
  virtual void read_answer(peer& whom, incarnation_id incarnation) noexcept = 0;
  /// Reads whether the group has declared this worker dead.
  virtual void look_for_own_fence() noexcept = 0;

  // Called without a lock from here on.
  /// To be written once `who` has left without a word in the store; empty: nothing is. Throws std::bad_alloc, as does the next one.
  [[nodiscard]] virtual store_record departure_of(const worker_info& who, incarnation_id incarnation) = 0;
  /// To be written if that worker has died after it had announced its leave; empty: nothing is.
  [[nodiscard]] virtual store_record end_of_leaving(const fence_notice& notice) = 0;
  virtual void write_later(store_record&& record) noexcept = 0;
  /// Records that a worker is dead, and tells the others; `contested`: only its silence shows it, and it may have declared
  /// this worker dead, too.
  virtual void publish_loss(const fence_notice& notice, bool contested) noexcept = 0;
  /// False: what other members have recorded could not be read before the deadline. Blocks.
  virtual bool read_records(deadline until) = 0;
  /// The worker whose process serves the store is lost.
  virtual void on_store_host_lost(const std::string& host, const std::string& reason) noexcept = 0;

  /// A member has left, and departure_of() has a record of that to be written.
  virtual void on_departure() noexcept = 0;
  /// Waits for the members, or for the end of calls, look again.
  virtual void on_change() noexcept = 0;
  virtual void on_activity() noexcept = 0;

 protected:
  ~group_records() = default;
};

}  // namespace ferry::inline v0::detail
