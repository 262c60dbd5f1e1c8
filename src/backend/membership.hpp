#pragma once

// Who is in a dynamic group. The members agree on it through a log in the store: every join, leave and death is an entry, and
// everybody who reads the entries in their order comes to the same result. An entry that does not fit where it stands (a name
// that is taken, a witness who is no member) changes nothing, for nobody: so no lock is needed, and none can be left behind.
//
// The reading alone; member_log has the store.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "peers.hpp"

namespace ferry::inline v0::detail {

struct member_entry {
  enum class kind : std::uint8_t { join, leave, lost };
  kind what{};
  worker_record record;  ///< of join; its `joined` is not written
  incarnation witness;   ///< of lost: a member who says so; none: somebody who found it gone, and wants its place
  incarnation whom;      ///< of leave and lost
  std::string reason;    ///< of lost

  static member_entry join(worker_record who) { return {kind::join, std::move(who), {}, {}, {}}; }
  static member_entry leave(incarnation who) { return {kind::leave, {}, {}, who, {}}; }
  static member_entry lost(incarnation witness, incarnation who, std::string reason) {
    return {kind::lost, {}, witness, who, std::move(reason)};
  }

  [[nodiscard]] std::string encode() const;
  /// Throws errc::malformed.
  static member_entry decode(const std::string& text);
};

/// What one entry has changed.
struct membership_change {
  enum class kind : std::uint8_t { none, joined, left, lost };
  kind what = kind::none;
  worker_record record;
  std::string reason;
};

/// Value type; not thread-safe.
class membership {
 public:
  /// `index` must be the next one.
  membership_change apply(std::uint64_t index, const member_entry& entry);
  /// An entry that cannot be read: nothing changes.
  void skip(std::uint64_t index) noexcept { index_ = index; }

  /// The last entry that was applied; they count from 1.
  [[nodiscard]] std::uint64_t index() const noexcept { return index_; }
  [[nodiscard]] const std::map<int, worker_record>& members() const noexcept { return members_; }
  /// Null if there is none.
  [[nodiscard]] const worker_record* find(std::string_view name) const noexcept;
  [[nodiscard]] const worker_record* find(worker_id id) const noexcept;
  [[nodiscard]] const worker_record* find(incarnation life) const noexcept;
  [[nodiscard]] worker_id lowest_free_id() const noexcept;

  /// What a worker that joins late reads in place of the entries up to index().
  [[nodiscard]] std::string encode() const;
  /// Throws errc::malformed.
  static membership decode(const std::string& text);

 private:
  std::uint64_t index_ = 0;
  std::map<int, worker_record> members_;
};

}  // namespace ferry::inline v0::detail
