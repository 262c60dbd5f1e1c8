#pragma once

// The members of a dynamic group. They agree through a log in the store: every join, leave and death is an entry, and
// every reader that applies the entries in order comes to the same result. An entry that does not fit at its position
// (its name is taken, its witness is not a member) changes nothing, for any reader: so no lock is needed, and none can
// be left behind.
//
// A worker that leaves writes two entries: `leave`, after which it gets no new calls, and `gone`, when it has ended its
// own work. In between it keeps its name and its id, so that messages to either still reach it. A worker that no member
// can reach is queried in the log (`suspect`), and answers there (`alive`).
//
// Only applies entries; member_log accesses the store.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "../links/peers.hpp"

namespace ferry::inline v0::detail {

struct member_entry {
  enum class kind : std::uint8_t { join, leave, gone, suspect, alive, lost };
  kind what{};
  worker_record record;    ///< of join
  incarnation_id witness;  ///< of suspect and lost: the member that reports it; of lost, none: a worker that claims its
                           ///< place
  incarnation_id whom;     ///< of all but join
  std::uint64_t unanswered = 0;  ///< of lost: the `suspect` that it did not answer; 0: detected otherwise
  std::string reason;            ///< of lost

  static member_entry join(worker_record who) { return {kind::join, std::move(who), {}, {}, 0, {}}; }
  static member_entry leave(incarnation_id who) { return {kind::leave, {}, {}, who, 0, {}}; }
  static member_entry gone(incarnation_id who) { return {kind::gone, {}, {}, who, 0, {}}; }
  static member_entry suspect(incarnation_id witness, incarnation_id who) {
    return {kind::suspect, {}, witness, who, 0, {}};
  }
  static member_entry alive(incarnation_id who) { return {kind::alive, {}, {}, who, 0, {}}; }
  static member_entry lost(incarnation_id witness, incarnation_id who, std::string reason,
                           std::uint64_t unanswered = 0) {
    return {kind::lost, {}, witness, who, unanswered, std::move(reason)};
  }

  [[nodiscard]] std::string encode() const;
  /// Throws errc::malformed.
  static member_entry decode(const std::string& text);
};

/// What one entry has changed.
struct membership_change {
  enum class kind : std::uint8_t {
    none,
    joined,     ///< with record.leaving: some time ago, and it is leaving by now
    left,       ///< it is leaving: it keeps its name and id until it ends
    gone,       ///< its name and id are free; without record.leaving its leave was not announced
    lost,       ///< the same, of one that was a member
    suspected,  ///< it is queried whether it lives: by the entry record.suspected
    answered,   ///< it lives
  };
  kind what = kind::none;
  worker_record record;
  std::string reason;
};

/// Value type; not thread-safe.
class membership {
 public:
  /// `index` must be the next one. Throws std::bad_alloc; then nothing has changed.
  membership_change apply(std::uint64_t index, const member_entry& entry);
  /// An entry that cannot be read: nothing changes.
  void skip(std::uint64_t index) noexcept { index_ = index; }

  /// The last entry that was applied; indices start at 1.
  [[nodiscard]] std::uint64_t index() const noexcept { return index_; }
  /// Leaving ones included.
  [[nodiscard]] const std::map<int, worker_record>& members() const noexcept { return members_; }
  /// Null if there is none.
  [[nodiscard]] const worker_record* find(std::string_view name) const noexcept;
  [[nodiscard]] const worker_record* find(worker_id id) const noexcept;
  [[nodiscard]] const worker_record* find(incarnation_id incarnation) const noexcept;
  [[nodiscard]] worker_id lowest_free_id() const noexcept;
  /// Why the devices and device maps of `newcomer` do not fit those of the members; empty: they do. Ignores leaving
  /// members.
  [[nodiscard]] std::string device_conflict(const worker_record& newcomer) const;

  /// The snapshot that a late worker reads instead of the entries up to index().
  [[nodiscard]] std::string encode() const;
  /// Throws errc::malformed.
  static membership decode(const std::string& text);

 private:
  membership_change take(std::uint64_t index, const member_entry& entry);
  static membership_change suspect(worker_record& whom, std::uint64_t index, membership_change::kind what);
  membership_change remove(const worker_record& whom, membership_change::kind what, std::string reason);
  /// Its name, id and incarnation must be free. Throws std::bad_alloc; then nothing has changed.
  void insert(worker_record who);

  std::uint64_t index_ = 0;
  std::map<int, worker_record> members_;
  std::map<std::string, int, std::less<>> ids_by_name_;
  std::map<std::uint64_t, int> ids_by_incarnation_;
  std::set<int> with_maps_;  // those that have device maps
};

}  // namespace ferry::inline v0::detail
