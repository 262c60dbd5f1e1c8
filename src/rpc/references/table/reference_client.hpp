#pragma once

// How the references of a worker attach to its calls: as an interceptor with records, and as state of the worker.

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ferry/rpc/attached.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "reference_table.hpp"

namespace ferry::inline v0::detail {

class worker_core;

/// One for each worker. Thread-safe. A call without references, to no object, does not meet it.
class reference_client final : public worker_attachment, public interceptor {
 public:
  explicit reference_client(worker_core& worker) noexcept : worker_(worker) {}

  /// Made on first use, once the worker has joined its group.
  [[nodiscard]] const std::shared_ptr<reference_table>& table();
  /// Null: it has not been used.
  [[nodiscard]] reference_table* made() const noexcept { return made_.load(std::memory_order_acquire); }
  [[nodiscard]] std::unique_ptr<carried_handles> carry(const call_target& to);

  // interceptor
  [[nodiscard]] std::string_view name() const noexcept override { return "ferry/references"; }
  [[nodiscard]] std::span<const std::uint16_t> record_types() const noexcept override;
  [[nodiscard]] bool sees_all_requests() const noexcept override { return false; }
  std::unique_ptr<callee_hooks> on_arrival(incoming_request& request) override;
  void on_reply_records(incoming_reply& reply) override;

  // worker_attachment
  void on_member_event(const member_event& event) noexcept override;
  void on_member_end(worker_id id, incarnation_id incarnation) noexcept override;
  void on_group_quiet(deadline until, bool alone) noexcept override;
  [[nodiscard]] std::uint64_t loose_ends() const noexcept override;
  void stop_waiting(bool entirely) noexcept override;
  [[nodiscard]] std::vector<std::string> leaks() const override;
  void close() noexcept override;
  void clear(bool idle) noexcept override;

 private:
  worker_core& worker_;
  std::once_flag once_;
  std::shared_ptr<reference_table> table_;
  std::atomic<reference_table*> made_{nullptr};
  std::mutex events_mutex_;                                           // guards the next three
  bool told_ = false;                                                 // the table is there and is told of events itself
  std::vector<std::pair<worker_id, incarnation_id>> leaving_before_;  // have not terminated
  std::deque<std::pair<worker_id, incarnation_id>> gone_before_;      // have terminated: the most recent
};

/// The references of a worker. Valid as long as the worker_core.
[[nodiscard]] const std::shared_ptr<reference_table>& references_of(worker_core& worker);

}  // namespace ferry::inline v0::detail
