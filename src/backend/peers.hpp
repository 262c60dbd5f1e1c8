#pragma once

// The other workers, as one worker knows them.

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/backend/worker_info.hpp>
#include <ferry/base/ids.hpp>

#include "control.hpp"
#include "liveness.hpp"

namespace ferry::inline v0::detail {

class incoming_link;
class outgoing_link;

/// What a worker tells the others through the store.
struct worker_record {
  worker_info who;
  incarnation life;
  std::string host;                    ///< the machine and network namespace it runs in, for those in the same one
  std::vector<std::string> addresses;  ///< best first
  std::string metadata;                ///< whatever its user wants the others to know
  std::uint64_t joined = 0;            ///< of a dynamic group: its place in the order of joins, from 1; not encoded

  [[nodiscard]] std::string encode() const;
  /// Throws errc::malformed.
  static worker_record decode(const std::string& text, int id);
};

/// Of this process, as in worker_record::host; empty if it cannot be told.
std::string this_host();

enum class peer_state : std::uint8_t {
  unknown,  ///< no record yet
  member,
  left,  ///< it said so
  lost,  ///< it died, or was declared dead
};

/// One place of the group: the worker of an id, or whoever had it last. Lives as long as the table.
struct peer {
  explicit peer(worker_id number) noexcept : id(number) {}

  const worker_id id;
  /// Set by every message that comes from it; taken back by the tick. Apart from what calls lock.
  alignas(64) std::atomic<bool> heard{false};

  alignas(64) mutable std::mutex mutex;  // guards what follows
  peer_state state = peer_state::unknown;
  worker_record record;
  std::string end;  ///< why it left or was lost
  std::shared_ptr<outgoing_link> link;
  std::shared_ptr<incoming_link> incoming;  ///< the latest one
  std::shared_ptr<control_link> control;
  liveness live;

  // The next three with `mutex` held.
  [[nodiscard]] bool is(incarnation life) const noexcept { return state == peer_state::member && record.life == life; }
  /// Its connections count: those of a peer that is ahead of this worker's own table, too, and of one that is leaving.
  [[nodiscard]] bool counts(incarnation life) const noexcept {
    return state == peer_state::unknown || (record.life == life && state != peer_state::lost);
  }
  [[nodiscard]] remote_worker remote() { return {record.who, record.life, &heard}; }
};

/// Thread-safe. Lookups by id take no lock.
class peer_table {
 public:
  peer_table() = default;
  ~peer_table();
  peer_table(const peer_table&) = delete;
  peer_table& operator=(const peer_table&) = delete;

  /// The place of `id`, made if need be. `id` must be valid: 0..worker_id::max.
  peer& place(worker_id id);
  /// Null if there is none yet.
  [[nodiscard]] peer* at(worker_id id) const noexcept;
  /// The member of that name; null if there is none.
  [[nodiscard]] peer* find(std::string_view name) const;
  /// Makes the place of the record's id that of this member.
  peer& admit(worker_record record);
  /// Every place, by id.
  [[nodiscard]] std::vector<peer*> all() const;

 private:
  static constexpr int block_size = 256;
  using block = std::array<std::atomic<peer*>, block_size>;
  std::array<std::atomic<block*>, (worker_id::max + block_size) / block_size> blocks_{};
  mutable std::shared_mutex mutex_;  // guards the names, and writing
  std::map<std::string, peer*, std::less<>> names_;
  std::vector<std::unique_ptr<peer>> owned_;
  std::vector<std::unique_ptr<block>> owned_blocks_;
};

}  // namespace ferry::inline v0::detail
