#pragma once

// A worker's records of the other workers.

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ferry/backend/worker_info.hpp>
#include <ferry/base/ids.hpp>

#include "../../base/text_hash.hpp"
#include "../devices/device_checks.hpp"
#include "../lock_ranks.hpp"
#include "control.hpp"
#include "liveness.hpp"

namespace ferry::inline v0::detail {

class incoming_link;
class outgoing_link;

/// What a worker publishes through the store.
struct worker_record {
  worker_info who;
  incarnation_id incarnation;
  std::string host;                    ///< the machine and network namespace it runs in; equal for workers that share
                                       ///< both
  std::vector<std::string> addresses;  ///< best first
  std::string metadata;                ///< arbitrary user data for the others
  /// Its devices and its maps; null: its version does not publish them.
  std::shared_ptr<const device_record> devices = nullptr;
  /// Of what it accepts: a sender applies them. Null: those that are the default, or its version does not publish them.
  std::shared_ptr<const wire_limits> limits = nullptr;
  bool serves_store = false;  ///< the group's store ends with its process

  [[nodiscard]] std::string encode() const;
  /// Throws errc::malformed.
  static worker_record decode(std::string_view text, int id);

  [[nodiscard]] worker_devices for_checks() const noexcept { return {who.name(), devices.get()}; }
};

/// As in worker_record::limits: those that a sender can apply, if they are not the default ones.
std::shared_ptr<const wire_limits> limits_to_publish(const wire_limits& own);

/// A worker makes one of a record where it reads it, and keeps no other copy.
using shared_record = std::shared_ptr<const worker_record>;

/// Of this process, as in worker_record::host; empty if unknown.
std::string this_host();

enum class peer_state : std::uint8_t {
  unknown,  ///< no record yet
  member,
  leaving,  ///< it has left a dynamic group, and ends its calls
  left,     ///< it announced that, or terminated afterwards
  lost,     ///< it died, or was declared dead
};

/// One place of the group: the worker of an id, or the last one that had it. Lives as long as the table.
struct peer {
  /// `nothing`: the record of a place without a worker.
  peer(worker_id number, shared_record nothing) noexcept : id(number), record(std::move(nothing)) {}

  const worker_id id;
  /// Set by every message from it; cleared by the tick. On a separate cache line from what calls lock.
  std::atomic<bool> heard{false};
  // Of ticking_peers.
  std::atomic<bool> ticking{false};
  peer* next_ticking = nullptr;
  peer_limits limits;  // of the latest record

  alignas(64) mutable ranked_mutex mutex{rank_of_peer};  // guards what follows
  peer_state state = peer_state::unknown;
  shared_record record;                             ///< never null
  std::shared_ptr<const device_maps_between> maps;  ///< between this worker and it; null: there are none
  std::string end;                                  ///< why it left or was lost
  std::shared_ptr<outgoing_link> link;
  std::shared_ptr<outgoing_link> urgent;    ///< for calls that must not wait behind others; opened when first needed
  std::shared_ptr<incoming_link> incoming;  ///< the latest one that is not for urgent calls
  std::shared_ptr<control_link> control;
  liveness live;

  /// The connections of one kind, for calls or for control, that a worker may have open to this one: many more than it
  /// needs, even if some have broken and that is not noticed yet.
  static constexpr int most_connections = 8;
  std::atomic<int> accepted_calls{0};  // open now; without the mutex, as is the next one
  std::atomic<int> accepted_controls{0};

  // Call the following with `mutex` held.
  [[nodiscard]] bool is(incarnation_id incarnation) const noexcept {
    return state == peer_state::member && record->incarnation == incarnation;
  }
  /// It runs, as far as this worker knows.
  [[nodiscard]] bool present() const noexcept { return state == peer_state::member || state == peer_state::leaving; }
  [[nodiscard]] bool present(incarnation_id incarnation) const noexcept {
    return present() && record->incarnation == incarnation;
  }
  /// Its connections count: also those of a peer that this worker's table does not have yet, and of a leaving one.
  [[nodiscard]] bool counts(incarnation_id incarnation) const noexcept {
    return state == peer_state::unknown || (record->incarnation == incarnation && state != peer_state::lost);
  }
  [[nodiscard]] std::string why_lost() const { return "it is dead: " + end; }
  [[nodiscard]] remote_worker remote() {
    remote_worker there(record->who, record->incarnation, &heard);
    there.limits = &limits;
    return there;
  }
};

/// Thread-safe. Lookups by id take no lock, and neither does that of the name which the thread has looked up last.
class peer_table {
 public:
  peer_table();
  ~peer_table();
  peer_table(const peer_table&) = delete;
  peer_table& operator=(const peer_table&) = delete;

  /// The place of `id`, created if needed. `id` must be valid: 0..worker_id::max.
  peer& place(worker_id id);
  /// Null if there is none yet.
  [[nodiscard]] peer* at(worker_id id) const noexcept;
  /// The member of that name; null if there is none.
  [[nodiscard]] peer* find(std::string_view name) const;
  /// Assigns the place of the record's id to this member. Throws std::bad_alloc; then nothing has changed.
  peer& admit(shared_record record, std::shared_ptr<const device_maps_between> maps);
  /// The first place after `id`, in a ring of all ids in use, for which `wanted` is true; null if there is none but its
  /// own.
  template <class Wanted>
  [[nodiscard]] peer* next_after(worker_id id, Wanted wanted) const {
    const int end = std::max(highest_.load(std::memory_order_acquire), id.value) + 1;
    for (int step = 1; step < end; ++step) {
      peer* each = at(worker_id{(id.value + step) % end});
      if (each && wanted(*each)) return each;
    }
    return nullptr;
  }
  /// Every place, by id.
  [[nodiscard]] std::vector<peer*> all() const;

  /// Counts the admissions, and what note_change() reports of a state that has changed.
  [[nodiscard]] std::uint64_t changes() const noexcept { return changes_.load(std::memory_order_acquire); }
  void note_change() noexcept { changes_.fetch_add(1, std::memory_order_release); }

 private:
  [[nodiscard]] peer* look_up(std::string_view name) const;

  static constexpr int block_size = 256;
  using block = std::array<std::atomic<peer*>, block_size>;
  std::array<std::atomic<block*>, (worker_id::max + block_size) / block_size> blocks_{};
  const std::uint64_t number_;    // of this table in the process
  std::atomic<int> highest_{-1};  // id of the last place
  // On a separate cache line from the mutex: every call by name reads it.
  alignas(64) std::atomic<std::uint64_t> changes_{0};
  alignas(64) mutable std::shared_mutex mutex_;  // guards what follows, and writing
  // Null: of a member that is about to be admitted.
  std::unordered_map<std::string, peer*, text_hash, std::equal_to<>> names_;
  std::pmr::monotonic_buffer_resource memory_;  // many places together: they end with the table
  std::vector<peer*> owned_;
  std::vector<std::unique_ptr<block>> owned_blocks_;
  const shared_record nothing_ = std::make_shared<const worker_record>();
};

}  // namespace ferry::inline v0::detail
