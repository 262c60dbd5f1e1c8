#pragma once

// The log of a dynamic group in its store. Keys, below the prefix that the store was given:
//
//   log/<index>   one entry, written once, by whoever came first: index is decimal, counts from 1, without gaps
//   tail          the index of a late entry; set after every one, for those who wait
//   members       what the entries up to some index amount to, for those who join late
//   trimmed       the entries up to this one were removed: who has not read them starts from `members`

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <ferry/store/store.hpp>

#include "membership.hpp"

namespace ferry::inline v0::detail {

/// Thread-safe. Throws what the store throws.
class member_log {
 public:
  /// Is told of every change, in order; no function of the log may be called from there.
  using observer = std::function<void(const membership_change& change)>;

  member_log(std::shared_ptr<store> where, observer told) : store_(std::move(where)), told_(std::move(told)) {}

  /// Reads what is there; the observer hears of the present members as joined.
  void load();
  /// Reads what is new.
  void catch_up();
  /// Writes an entry at the end, and returns what it has changed there; nothing, if it does not fit.
  membership_change append(const member_entry& entry);
  /// Blocks until there may be something new. False at the deadline.
  bool wait(deadline until = {});

  /// The store is let go: functions that use it throw errc::store_failed from now on.
  void release() noexcept;

  /// Everything up to this entry has been told.
  [[nodiscard]] std::uint64_t seen() const noexcept { return seen_.load(std::memory_order_acquire); }
  [[nodiscard]] membership members() const;

  /// How many entries lie between two writings of `members`, and how many older ones are kept.
  static constexpr std::uint64_t snapshot_interval = 128;
  static constexpr std::uint64_t kept_entries = 256;

 private:
  // With mutex_ held.
  /// The next entry may be missing because there is none yet, or because it was removed, with what others made of it left.
  void read_new(bool look_for_gap);
  void load_snapshot();
  /// Between what was `known` and the members now.
  void report_difference(const membership& known);
  membership_change take(std::uint64_t index, const std::string& text);
  void report(const membership_change& change);
  void publish_members();
  [[nodiscard]] std::uint64_t number_at(std::string_view key);

  [[nodiscard]] std::shared_ptr<store> where() const;

  mutable std::mutex store_mutex_;  // guards the next one
  std::shared_ptr<store> store_;
  const observer told_;
  mutable std::mutex mutex_;  // guards the next one, and is held while the observer is told
  membership members_;
  std::atomic<std::uint64_t> seen_{0};
  std::mutex waiting_mutex_;  // guards the next one
  std::uint64_t tail_version_ = store_change::unknown;
};

}  // namespace ferry::inline v0::detail
