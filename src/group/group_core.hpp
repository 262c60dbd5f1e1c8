#pragma once

// A process_group at one member: who is in it, which collectives are under way, and how they end together.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ferry/backend/worker_info.hpp>
#include <ferry/group/process_group.hpp>

#include "../transport/reactor/time_limit.hpp"
#include "group_collective.hpp"

namespace ferry::inline v0::detail {

struct collectives_of_worker;
class group_table;
class nccl_group;
class worker_core;

struct group_facts {
  std::uint64_t id = 0;
  std::vector<worker_info> members;  ///< by rank
  std::vector<std::string> names;
  int rank = 0;
  group_options options;  ///< complete
};

/// Thread-safe. Kept by the handles and by the collectives under way; its worker finds it while it lives.
class group_core : public std::enable_shared_from_this<group_core> {
 public:
  group_core(std::shared_ptr<worker_core> worker, group_facts facts);
  ~group_core();
  group_core(const group_core&) = delete;
  group_core& operator=(const group_core&) = delete;

  /// Collective. See process_group.
  static std::shared_ptr<group_core> make(std::shared_ptr<worker_core> worker, const members& among,
                                          const group_options& options);

  [[nodiscard]] const group_facts& facts() const noexcept { return facts_; }
  [[nodiscard]] int rank() const noexcept { return facts_.rank; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(facts_.names.size()); }
  [[nodiscard]] const std::string& name_of(int rank) const { return facts_.names[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::shared_ptr<worker_core>& worker() const noexcept { return worker_; }
  [[nodiscard]] group_plan plan(collective op, std::size_t bytes, device_kind memory) const;
  [[nodiscard]] std::vector<int> lost() const;

  /// Begins the collective and returns the number that it gives it. Errors from here on go to its end.
  std::uint64_t begin(collective_start start);
  /// That of the collective of all members that begins next.
  [[nodiscard]] std::uint64_t next_number() const;
  /// The limit in force for one that begins now.
  void set_limit(collective_start& start, timeout limit) const;

  // For messages from others.
  future<void> deliver(const group_message& message, const tensor& bytes);
  void on_abort(const group_abort& what);
  /// What this member has begun under that number, as text; "?" if that was long ago, empty if it has begun nothing.
  [[nodiscard]] std::string begun_as(const collective_key& key) const;
  /// Throws errc::invalid_argument unless the handler's caller is that member.
  void check_sender(int from) const;

  // For collectives.
  /// The one place where bytes leave this member. The future completes when they have been read.
  future<void> send(const group_message& message, int to, const tensor& bytes) const;
  /// Ends a collective here and at all others that take part.
  void fail(const collective_key& key, errc error, const std::string& reason, int lost = -1) noexcept;
  void time_out(const collective_key& key, timeout limit) noexcept;
  void forget(const collective_key& key) noexcept;
  void post(std::function<void()> what) const noexcept;
  /// Null: the members share no memory.
  [[nodiscard]] segment_queue* segment() const noexcept { return segment_.load(); }
  void drive_segment() const noexcept;
  /// Null: the group does without.
  [[nodiscard]] nccl_group* nccl() const noexcept { return nccl_.get(); }
  /// Whether its members agree on NCCL before they make it.
  [[nodiscard]] bool may_go_by_nccl(collective op, std::size_t bytes) const noexcept;
  /// How that collective's bytes travel in messages.
  [[nodiscard]] algorithm message_algorithm(collective op, std::size_t bytes) const;
  /// Whether it begins in the shared segment.
  [[nodiscard]] bool goes_through_segment(collective op, std::size_t bytes) const noexcept;
  [[nodiscard]] std::string describe(const collective_key& key, const collective_signature& signature) const;
  /// The same at all members, and of no other collective of the group.
  [[nodiscard]] std::uint64_t trace_number(const collective_key& key) const noexcept;
  /// Why a collective has failed, by the text of an error that another member has answered: that of its own failure says of what it
  /// is.
  [[nodiscard]] std::string reason_of(const collective_key& key, int member, std::string_view text) const;

  /// Whether another member has told the end of that collective, which this one has not begun.
  [[nodiscard]] bool knows_end_of(const collective_key& key) const;
  /// The most messages that this member keeps from each other one, of collectives that it has not begun.
  void set_most_early(std::size_t messages);

  // For the worker.
  /// Its collectives under way, and how far it is.
  void describe(clock::time_point now, collectives_of_worker& to) const;
  void on_gone(const worker_info& who, const std::string& what) noexcept;
  void close() noexcept;

 private:
  /// Of which collective it is, as texts say behind what it is.
  [[nodiscard]] std::string describe(const collective_key& key) const;
  struct outcome {
    errc error = {};
    std::string text;
    int from = -1;  // who has told it; -1: this member
  };
  /// The first rule of the group for it; null if there is none.
  [[nodiscard]] const plan_rule* own_rule(collective op, std::size_t bytes) const noexcept;
  /// Empty: by NCCL, if all members can.
  [[nodiscard]] std::string why_not_nccl(collective op, std::size_t bytes) const;
  void share_memory(deadline until);
  void pass_to_segment(const collective_key& key, const std::shared_ptr<group_collective>& made, bool& wakes_others);
  void wake(int sleeper) noexcept;
  // With the mutex held.
  std::deque<early_message> take_early(const collective_key& key);
  outcome take_ended(const collective_key& key);
  [[nodiscard]] std::shared_ptr<group_collective> find(const collective_key& key) const;
  [[nodiscard]] std::string text_of_lost() const;  // with the mutex held
  [[nodiscard]] std::vector<int> others_in(const collective_key& key) const;
  void abort_others(const group_abort& what) const noexcept;
  void note_lost(int rank, const std::string& what);

  const std::shared_ptr<worker_core> worker_;
  const std::shared_ptr<group_table> table_;
  const group_facts facts_;
  std::unique_ptr<segment_queue> segment_queue_;  // these four do not change once the group is made
  std::atomic<segment_queue*> segment_{nullptr};  // others may send messages a little earlier
  std::string why_no_segment_;
  bool segment_failed_ = false;
  std::unique_ptr<nccl_group> nccl_;            // does not change
  mutable std::mutex mutex_;                    // guards what follows
  std::map<std::int32_t, std::uint64_t> next_;  // by channel
  std::map<collective_key, std::shared_ptr<group_collective>> open_;
  std::map<collective_key, std::deque<early_message>> early_;  // of collectives that this member has not begun
  std::vector<std::size_t> early_from_;                        // by rank: the number of messages in it
  std::map<collective_key, outcome> ended_;                    // the same, that others have ended with an error
  std::vector<std::size_t> ended_from_;                        // by rank: the number of outcomes in it
  std::size_t most_early_ = std::size_t{1} << 18U;
  std::deque<std::pair<collective_key, collective_signature>> ended_as_;  // the last ones, however they ended
  std::map<int, std::string> lost_;
  std::map<int, renewed_time_limit> wakes_;  // by rank: those that are tried again; none is removed
  bool closed_ = false;
};

/// "all_reduce(sum) of f32 [2, 3]"
std::string to_string(const collective_signature& signature);

}  // namespace ferry::inline v0::detail
