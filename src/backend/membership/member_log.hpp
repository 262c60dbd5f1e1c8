#pragma once

// The log of a dynamic group in its store. Keys, below the store's prefix:
//
//   log/<index>   one entry, written once, by the first writer: index is decimal, counts from 1, without gaps
//   tail          the index of a late entry; set after every one, to wake readers that wait
//   members       a snapshot: the result of the entries up to some index, for workers that join late
//   trimmed       the entries up to this one were removed: a reader that has not read them starts from `members`

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../../store/bounded_store.hpp"
#include "membership.hpp"

namespace ferry::inline v0::detail {

/// Thread-safe. Every function that asks the store ends at its deadline, also while it waits for the requests of other
/// threads. Throws what the store throws.
class member_log {
 public:
  /// Receives every change, in order; must not call any function of the log. May throw std::bad_alloc before it has
  /// changed anything: then it gets the change again, before any other one, when the log is asked next.
  using observer = std::function<void(const membership_change& change)>;

  member_log(std::shared_ptr<bounded_store> where, observer observe)
      : store_(std::move(where)), observer_(std::move(observe)) {}

  /// Reads what is there; reports the present members to the observer as joined.
  void load(deadline until);
  /// Reads new entries.
  void catch_up(deadline until);
  /// Writes an entry at the end, and returns the change it made there; none, if it does not fit.
  membership_change::kind append(const member_entry& entry, deadline until);
  /// Blocks until there may be new entries. False at the deadline.
  bool wait(deadline until);

  /// Releases the store: functions that use it throw errc::store_failed from now on.
  void release() noexcept;

  /// Everything up to this entry has been reported.
  [[nodiscard]] std::uint64_t seen() const noexcept { return seen_.load(std::memory_order_acquire); }
  /// Returns what `look` says of the members; must not call any function of the log.
  template <class Look>
  [[nodiscard]] auto view(const Look& look) const {
    const std::lock_guard lock(members_mutex_);
    return look(members_);
  }
  /// A copy.
  [[nodiscard]] membership members() const {
    return view([](const membership& there) { return there; });
  }

  /// How many entries lie between two updates of `members`, and how many older ones are kept.
  static constexpr std::uint64_t snapshot_interval = 128;
  static constexpr std::uint64_t kept_entries = 256;

 private:
  // One thread at a time asks the store and reports changes: the others wait until their deadlines.
  class turn {
   public:
    /// Throws errc::store_timeout at the deadline.
    turn(const member_log& log, deadline until);
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn();

   private:
    const member_log& log_;
  };

  // Call the following in the caller's turn.
  /// The next entry may be missing because there is none yet, or because it was trimmed after its effect went into
  /// `members`.
  void read_new(bool look_for_gap, deadline until);
  void load_snapshot(deadline until);
  membership_change::kind take(std::uint64_t index, const std::string& text);
  /// What leads from one list of members to another.
  static std::vector<membership_change> difference(const membership& from, const membership& to);
  /// Passes the unreported changes to the observer.
  void report();
  void publish_members(deadline until);
  [[nodiscard]] std::uint64_t number_at(std::string_view key, deadline until) const;

  [[nodiscard]] std::shared_ptr<bounded_store> where() const;

  mutable std::mutex store_mutex_;  // guards the next one
  std::shared_ptr<bounded_store> store_;
  const observer observer_;
  mutable std::mutex turn_mutex_;  // guards the next one
  mutable bool turn_taken_ = false;
  mutable std::condition_variable turn_free_;
  mutable std::mutex members_mutex_;  // guards the next one; only the thread whose turn it is changes it
  membership members_;
  std::vector<membership_change> unreported_;  // only the thread whose turn it is accesses it
  std::atomic<std::uint64_t> seen_{0};
  std::mutex waiting_mutex_;  // guards the next one
  std::uint64_t tail_version_ = store_change::unknown;
};

}  // namespace ferry::inline v0::detail
