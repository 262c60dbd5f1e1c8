#pragma once

// A group that workers join and leave at any time; every member reads its log (member_log.hpp).

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "member_log.hpp"
#include "worker_group.hpp"

namespace ferry::inline v0::detail {

class dynamic_group final : public worker_group {
 public:
  using worker_group::worker_group;

  void join(deadline until) override;
  void leave_together(deadline until) override { leave_by_log(until, leave_interrupt::others); }
  void leave(deadline until) override { leave_by_log(until, leave_interrupt::all); }
  /// Releases its name and its id, unless it leaves: before the others' leases run out, which would declare it dead.
  void begin_to_close() noexcept override;
  void end() noexcept override;
  [[nodiscard]] bool may_have(worker_id) const noexcept override { return true; }
  [[nodiscard]] std::optional<std::uint64_t> table_as_of() const noexcept override { return log_->seen(); }

  // group_records
  [[nodiscard]] bool is_member() const noexcept override { return joined_.load() != 0; }
  [[nodiscard]] bool is_announced() const noexcept override { return own_.announced.load() != 0; }
  [[nodiscard]] bool has_log() const noexcept override { return true; }
  void begin_to_watch(liveness& whom) noexcept override {
    if (!whom.guarded) whom.begin_guarding(clock::now());
  }
  void ask_for_life(peer& whom, incarnation_id incarnation) noexcept override;
  void read_answer(peer& whom, incarnation_id incarnation) noexcept override;
  void look_for_own_fence() noexcept override { (void)access_.request_read(); }
  [[nodiscard]] store_record departure_of(const worker_info& who, incarnation_id incarnation) override;
  [[nodiscard]] store_record end_of_leaving(const fence_notice& notice) override;
  [[nodiscard]] bool read_records(deadline until) override { return access_.read_log(until); }
  void on_store_host_lost(const std::string&, const std::string&) noexcept override {}
  void on_departure() noexcept override;

 private:
  void write_loss(const fence_notice& notice, bool contested) override;
  [[nodiscard]] bool catch_up() noexcept override;

  void choose_id();
  /// Throws errc::duplicate_name or duplicate_id if a live member has this worker's name or id; records a dead one as
  /// lost.
  void make_room(deadline until);
  [[noreturn]] void throw_still_leaving(const worker_record& holder, bool by_name) const;
  [[nodiscard]] connect_outcome probe(const worker_record& holder, deadline until);
  void check_devices_fit() const;

  void follow() noexcept;
  void take(const membership_change& change);
  /// Handles entries of the log about this worker itself, and about others.
  void take_own(const membership_change& change);
  void answer_suspicion();
  void take_others(const membership_change& change);
  /// Every member is watched by one other, so that every death is noticed.
  void watch_next() noexcept;
  void write_gone(incarnation_id incarnation);

  void leave_by_log(deadline until, leave_interrupt level);
  void log_own_leave(deadline until, leave_interrupt level);
  void log_own_end() noexcept;

  std::unique_ptr<member_log> log_;         // once it begins to join; then for good
  std::thread follower_;                    // reads it
  std::atomic<std::uint64_t> joined_{0};    // the index of its own entry
  std::atomic<bool> leave_written_{false};  // or about to be, as the next one
  std::atomic<bool> gone_written_{false};
  std::atomic<deadline> shutdown_until_{deadline(clock::time_point::min())};  // of the last leave
  ranked_mutex ring_mutex_{rank_of_ring};                                     // guards the next one
  peer* watched_ = nullptr;                                                   // the next member
};

}  // namespace ferry::inline v0::detail
