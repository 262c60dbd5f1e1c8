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
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
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
  static member_entry decode(std::string_view text);
};

/// A member as the entries tell of it.
struct group_member {
  shared_record record;
  std::uint64_t joined = 0;     ///< its place in the order of joins, from 1
  bool leaving = false;         ///< it has announced its leave, but not yet its end
  std::uint64_t suspected = 0;  ///< the entry that asks whether it lives; 0: none
};

/// What one entry has changed.
struct membership_change {
  enum class kind : std::uint8_t {
    none,
    joined,     ///< with member.leaving: some time ago, and it is leaving by now
    left,       ///< it is leaving: it keeps its name and id until it ends
    gone,       ///< its name and id are free; without member.leaving its leave was not announced
    lost,       ///< the same, of one that was a member
    suspected,  ///< it is queried whether it lives: by the entry member.suspected
    answered,   ///< it lives
  };
  kind what = kind::none;
  group_member member;  ///< as it is after the change, or was before its end
  std::string reason;
};

/// Value type; not thread-safe.
class membership {
 public:
  /// `index` must be the next one. Throws std::bad_alloc; then nothing has changed.
  membership_change apply(std::uint64_t index, member_entry entry);
  /// An entry that cannot be read: nothing changes.
  void skip(std::uint64_t index) noexcept { index_ = index; }

  /// The last entry that was applied; indices start at 1.
  [[nodiscard]] std::uint64_t index() const noexcept { return index_; }
  /// Leaving ones included.
  [[nodiscard]] const std::map<int, group_member>& members() const noexcept { return members_; }
  /// Null if there is none.
  [[nodiscard]] const group_member* find(std::string_view name) const noexcept;
  [[nodiscard]] const group_member* find(worker_id id) const noexcept;
  [[nodiscard]] const group_member* find(incarnation_id incarnation) const noexcept;
  [[nodiscard]] worker_id lowest_free_id() const noexcept;
  /// Why the devices and device maps of `newcomer` do not fit those of the members; empty: they do. Ignores leaving
  /// members.
  [[nodiscard]] std::string device_conflict(const worker_record& newcomer) const;

  /// The snapshot that a late worker reads instead of the entries up to index().
  [[nodiscard]] std::string encode() const;
  /// Throws errc::malformed.
  static membership decode(std::string_view text);

 private:
  membership_change take(std::uint64_t index, member_entry&& entry);
  membership_change remove(const group_member& whom, membership_change::kind what, std::string reason);
  /// False: its name, id or incarnation is not free, and nothing has changed. Throws std::bad_alloc; then as well.
  [[nodiscard]] bool insert(group_member who);
  void forget(const worker_record& whom) noexcept;

  std::uint64_t index_ = 0;
  std::map<int, group_member> members_;
  // Ids by the names in the records, and by incarnations.
  std::unordered_map<std::string_view, int> by_name_;
  std::unordered_map<std::uint64_t, int> by_incarnation_;
  std::set<int> with_maps_;  // those that have device maps
};

}  // namespace ferry::inline v0::detail
