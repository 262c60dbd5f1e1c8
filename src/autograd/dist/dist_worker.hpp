#pragma once

// Distributed autograd of one worker: its contexts, and what it is told of messages and members.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ferry/autograd/dist/backward.hpp>
#include <ferry/rpc/attached.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "../../transport/reactor/time_limit.hpp"
#include "autograd_record.hpp"
#include "dist_context.hpp"
#include "pass_messages.hpp"

namespace ferry::inline v0::detail {

class worker_core;

/// Where a worker begins to count its contexts, messages, passes and updates: each incarnation of it at another place, since what is
/// late, or is still kept elsewhere, of one under the same id must not be taken for its own. Drawn at random from the lower half of the
/// numbers: two incarnations that use a million each meet in one of 70 million cases.
[[nodiscard]] std::uint64_t first_number_of_incarnation();

/// The updates that are registered at one worker. Outlives the worker with its last user.
class update_table {
 public:
  using update = std::function<void(const dist_autograd::leaf_gradient& whole)>;
  std::uint64_t add(update apply);
  void remove(std::uint64_t number) noexcept;
  /// Null: there is none of that number.
  [[nodiscard]] std::shared_ptr<const update> find(std::uint64_t number) const;

 private:
  mutable std::mutex mutex_;  // guards the next two
  std::uint64_t next_ = first_number_of_incarnation();
  std::unordered_map<std::uint64_t, std::shared_ptr<const update>> all_;
};

/// What hears of failures of passes that lead to some of its leaves, at one worker.
struct leaf_watcher {
  std::vector<const void*> leaves;  ///< nodes
  /// On any thread, before the caller of the pass hears of it. Must not wait for the pass.
  std::function<void(std::uint64_t pass, const pass_failure& why)> failed;
};

/// An attachment of every worker of a process that has loaded the library, and the reader of its records. Thread-safe.
class dist_worker final : public worker_attachment,
                          public interceptor,
                          public std::enable_shared_from_this<dist_worker> {
 public:
  explicit dist_worker(worker_core& core) noexcept;
  ~dist_worker() override;
  static std::shared_ptr<dist_worker> of(worker_core& core);

  /// Throws errc::not_initialized once the worker shuts down.
  [[nodiscard]] std::shared_ptr<worker_core> core() const;
  /// This worker. Unknown before it has joined its group.
  [[nodiscard]] worker_info info() const;
  [[nodiscard]] worker_id id() const;
  [[nodiscard]] const std::shared_ptr<update_table>& updates() const noexcept { return updates_; }

  // Contexts.
  /// Throws errc::not_initialized.
  std::shared_ptr<dist_context> make_context();
  /// Null if the worker has none of that id.
  [[nodiscard]] std::shared_ptr<dist_context> find(dist_autograd::context_id id) const;
  /// Throws errc::invalid_argument.
  [[nodiscard]] std::shared_ptr<dist_context> need(dist_autograd::context_id id) const;
  /// For a message that belongs to that context. Null if the context is over. Throws errc::resource_exhausted.
  std::shared_ptr<dist_context> find_or_make(dist_autograd::context_id id);
  /// Its maker has done with it.
  void end_context(const std::shared_ptr<dist_context>& which) noexcept;
  /// The maker, or a worker in between, says so.
  void on_release(const release_message& told);

  // Most workers hear that contexts are over from the next request to them within a context of the same maker.
  /// Fills in what this worker knows of the maker of the record's context.
  void note_over(autograd_record& record) const;
  /// Throws errc::malformed unless the maker of that context can have made those.
  static void check_over(std::uint64_t context, const contexts_over& told);
  /// After check_over(), of what came with a request.
  void on_over(const contexts_over& told) noexcept;
  /// A request that said so was served at that worker.
  void heard_there(worker_id whom, const contexts_over& told) noexcept;

  [[nodiscard]] std::uint64_t next_message();
  [[nodiscard]] std::uint64_t next_pass();
  void count_passes(int change) noexcept { passes_.fetch_add(change, std::memory_order_relaxed); }
  [[nodiscard]] std::size_t running_passes() const noexcept {
    return static_cast<std::size_t>(passes_.load(std::memory_order_relaxed));
  }
  [[nodiscard]] std::size_t context_count() const;
  /// Passes that are over while a thread still runs a node of theirs.
  void count_stragglers(int change) noexcept { stragglers_.fetch_add(change); }
  [[nodiscard]] int stragglers() const noexcept { return stragglers_.load(); }

  /// Of passes that begin at this worker from now on, while the caller keeps it.
  void add_watcher(const std::shared_ptr<const leaf_watcher>& watcher);
  [[nodiscard]] std::vector<std::shared_ptr<const leaf_watcher>> watchers() const;

  // worker_attachment
  void on_member_event(const member_event& event) noexcept override;
  void on_member_end(worker_id id, incarnation_id incarnation) noexcept override;
  void on_group_quiet(deadline until, bool alone) noexcept override;
  /// What it has yet to tell others of contexts that are over.
  [[nodiscard]] std::uint64_t loose_ends() const noexcept override;
  void stop_waiting(bool entirely) noexcept override;
  void close() noexcept override;

  // interceptor
  [[nodiscard]] std::string_view name() const noexcept override { return "ferry/autograd"; }
  [[nodiscard]] std::span<const std::uint16_t> record_types() const noexcept override { return {&record_type_, 1}; }
  [[nodiscard]] bool sees_all_requests() const noexcept override { return false; }
  std::unique_ptr<callee_hooks> on_arrival(incoming_request& request) override;
  void on_reply_records(incoming_reply& reply) override;

 private:
  // Which contexts of an incarnation of a maker are over, as far as this worker was told: from its first one on.
  struct over {
    std::uint64_t below = 0;
    std::set<std::uint64_t> others;  // most_over of them
    std::uint64_t told = 0;          // when it was last heard of
    [[nodiscard]] bool contains(std::uint64_t id) const { return id < below || others.contains(id); }
  };
  static constexpr std::size_t most_over = std::size_t{1} << 16U;
  static constexpr std::size_t most_incarnations = 8;       // of one maker
  [[nodiscard]] over& over_of(std::uint64_t first);         // under the lock
  [[nodiscard]] bool is_over(std::uint64_t context) const;  // under the lock
  [[nodiscard]] std::uint64_t first_context() const;        // of this worker's own; under the lock
  [[nodiscard]] std::uint64_t oldest_kept() const;          // of this worker's own; under the lock
  [[nodiscard]] const worker_info& known_info() const;      // under the lock
  [[nodiscard]] std::uint64_t number_of_worker(std::atomic<std::uint64_t>& counter) const;
  // Ends those that are over here, and returns them.
  std::vector<std::shared_ptr<dist_context>> take_over(const release_message& told);
  void tell_release(const std::vector<worker_id>& whom, const release_message& what) noexcept;
  // The same, unless they hear of it within release_pause from a request.
  void owe_release(const std::vector<worker_id>& whom, const release_message& what) noexcept;
  void start_release_timer() noexcept;
  void stop_release_timer() noexcept;
  void tell_owed(bool all) noexcept;
  struct release_under_way;
  [[nodiscard]] std::shared_ptr<release_under_way> count_release();  // under the lock
  void send_release(worker_id whom, const release_message& what, int attempts_left,
                    std::shared_ptr<release_under_way> counted = nullptr) noexcept;

  worker_core& core_;  // use core()
  const std::uint16_t record_type_ = autograd_record_type;
  const std::shared_ptr<update_table> updates_ = std::make_shared<update_table>();
  std::atomic<std::int64_t> passes_{0};
  std::atomic<int> stragglers_{0};
  renewed_time_limit release_timer_;
  const std::uint64_t first_number_ = first_number_of_incarnation();
  std::atomic<std::uint64_t> next_message_{first_number_};
  std::atomic<std::uint64_t> next_pass_{first_number_};
  mutable std::atomic<std::int32_t> id_{-1};
  mutable std::mutex mutex_;  // guards the rest
  bool closed_ = false;
  std::vector<std::weak_ptr<const leaf_watcher>> watchers_;
  mutable worker_info info_;
  std::uint64_t next_context_ = first_number_;
  std::map<std::uint64_t, std::shared_ptr<dist_context>> contexts_;
  std::map<std::uint64_t, over> over_;  // by the first context of an incarnation
  std::uint64_t releases_ = 0;
  struct owed_release {
    release_message what;
    std::uint64_t since = 0;  // a tick of the timer
  };
  std::map<worker_id, std::vector<owed_release>> owed_;
  std::uint64_t release_tick_ = 0;
  bool release_ticks_ = false;
  std::uint64_t releases_under_way_ = 0;
  bool stop_waiting_ = false;
  std::condition_variable all_told_;
  std::map<worker_id, incarnation_id> joined_;  // the last one under each id
  std::set<worker_id> gone_;  // of these, those from which nothing more comes: none of their contexts is made anew
};

}  // namespace ferry::inline v0::detail
