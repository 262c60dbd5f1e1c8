#pragma once

// A group of a size that is fixed: all workers start, and leave, together.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker_group.hpp"

namespace ferry::inline v0::detail {

class static_group final : public worker_group {
 public:
  using worker_group::worker_group;

  void join(deadline until) override;
  void leave_together(deadline until) override;
  /// The others receive goodbyes on this worker's connections, or find no listener at its address.
  void leave(deadline until) override;
  [[nodiscard]] bool may_have(worker_id id) const noexcept override { return id.value < own_.world_size; }
  [[nodiscard]] std::optional<std::uint64_t> table_as_of() const noexcept override;

  // group_records
  [[nodiscard]] bool is_member() const noexcept override { return true; }
  [[nodiscard]] bool is_announced() const noexcept override { return true; }
  [[nodiscard]] bool has_log() const noexcept override { return false; }
  void begin_to_watch(liveness& whom) noexcept override { whom.awaited = true; }
  void ask_for_life(peer&, incarnation_id) noexcept override {}
  void read_answer(peer&, incarnation_id) noexcept override {}
  void look_for_own_fence() noexcept override;
  [[nodiscard]] store_record departure_of(const worker_info&, incarnation_id) override { return {}; }
  [[nodiscard]] store_record end_of_leaving(const fence_notice&) override { return {}; }
  [[nodiscard]] bool read_records(deadline) override { return true; }
  void on_store_host_lost(const std::string& host, const std::string& reason) noexcept override;
  void on_departure() noexcept override {}

 private:
  void write_loss(const fence_notice& notice, bool contested) override;

  void choose_attempt(deadline until);
  void agree_on_names(deadline until);
  [[nodiscard]] std::vector<std::string> all_ranks(std::string_view prefix) const;
  [[nodiscard]] std::vector<std::string> get_all(const std::vector<std::string>& keys, std::string_view prefix,
                                                 deadline until);
  void read_peers(deadline until);
  void count_mapped_devices(std::vector<worker_record>& records, deadline until);
  void publish_peers(const std::vector<std::string>& records, deadline until);
  void wait_for_ready(deadline until);
  void check_for_failed_start(deadline until);
  /// Once, in the log, after a while.
  template <class Text>
  void say_if_late(const Text& how_far);
  [[nodiscard]] std::string missing_workers(const std::vector<std::string>& keys, std::string_view prefix,
                                            deadline until) const;

  [[nodiscard]] bool is_gone(int rank) const;
  [[nodiscard]] int gone_count() const;
  void agree_to_leave(deadline until);
  [[nodiscard]] std::string sum_of_round(int round, deadline until);
  /// The sums of what the members wrote under `prefix`; without those that have terminated and wrote nothing.
  [[nodiscard]] std::string add_up_round(const std::string& prefix, deadline until);
  /// For errors: whom the round waits for at its deadline, or who keeps the rounds from agreeing.
  [[nodiscard]] std::string who_delays(int round, deadline until) const;
  /// A request to the store as a part of leave_together(), which a shutdown that is not graceful interrupts.
  template <class Request>
  [[nodiscard]] auto ask_while_leaving(deadline until, Request request);
  void watch_store_host() noexcept;
  [[noreturn]] void throw_silent_store(std::string_view why) const;

  std::atomic<bool> peers_known_{false};  // the table of peers is complete
  clock::time_point began_;               // to join; only that thread uses these
  bool said_late_ = false;
};

}  // namespace ferry::inline v0::detail
