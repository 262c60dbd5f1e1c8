#pragma once

// The part of one worker in a distributed pass.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ferry/autograd/dist/backward.hpp>
#include <ferry/autograd/dist/engine.hpp>
#include <ferry/backend/agent.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/rpc/promise.hpp>

#include "dist_context.hpp"
#include "pass_messages.hpp"

namespace ferry::inline v0::detail {

struct leaf_watcher;
class time_limit;

/// Numbers the nodes that the roots and the worker's messages in the pass lead to, counts for each how many gradients will
/// arrive, and runs a node when they have, the latest first. Gradients of messages of other workers are sent back to these, and
/// arrive there as those of messages of their own: in requests, or, where the part has nothing else left to do, in the answer to the
/// worker that waits for its end. One thread at a time runs the nodes: that of the first arrival while there is something to
/// run. No thread waits for gradients. docs/distributed_autograd.md has the proof that it ends.
class dist_pass final : public std::enable_shared_from_this<dist_pass> {
 public:
  struct root {
    held_edge to;
    tensor gradient;  ///< valid on the current stream of its device
  };
  struct root_options {
    bool exact = true;
    bool keeps_graph = false;
    bool accumulates = true;
    bool waits = false;  ///< the calling thread waits for the pass: it goes on with it, and reads answers itself
    std::vector<std::uint64_t> updaters;
    std::vector<held_edge> wanted;  ///< of engines other than ferry's own: found() has the gradients of these values
    deadline until;
  };

  /// Begins a pass at this worker. Throws as dist_context::begin_pass.
  static std::shared_ptr<dist_pass> begin(const std::shared_ptr<dist_context>& context, std::vector<root> roots,
                                          const root_options& options);
  /// Gradients have come for a message of this worker.
  static future<pass_answer> serve(const std::shared_ptr<dist_context>& context, worker_id asker,
                                   gradient_message&& arriving);
  /// Completes when the part of this worker is over.
  static future<void> on_failure_elsewhere(const std::shared_ptr<dist_context>& context, const failure_message& told);

  /// `asker`: the worker whose request waits for the end of this part; none at the root.
  dist_pass(std::shared_ptr<dist_context> context, std::shared_ptr<const pass_header> header,
            std::optional<worker_id> asker);
  ~dist_pass();
  dist_pass(const dist_pass&) = delete;
  dist_pass& operator=(const dist_pass&) = delete;

  [[nodiscard]] std::uint64_t number() const noexcept { return header_->pass; }
  [[nodiscard]] std::uint64_t context_number() const noexcept { return header_->context; }
  /// Completes when this worker's part is over and, if it began the pass, everything else: how it ended.
  [[nodiscard]] future<pass_answer> whole() const { return whole_.get_future(); }
  /// Before a wait for whole(), by the thread that has begun the pass: it waits for the answers of other workers itself, as long as
  /// some are missing, and goes on with what they bring.
  void help();

  /// The gradients of root_options::wanted, undefined where none came, once the pass is whole. Once.
  [[nodiscard]] std::vector<tensor> found() { return std::move(found_); }

  // Each of these ends the pass, unless it has ended.
  void on_lost(const member_event& event);
  void on_release();
  void supersede();
  void on_limit();
  void on_cancelled();

  /// It has ended, perhaps while a node of it still runs.
  [[nodiscard]] bool over() const noexcept { return over_; }
  /// Whether an optimizer of that worker updates parameters within the pass.
  [[nodiscard]] bool updates_at(worker_id who) const noexcept;

  /// The pass that runs a node on this thread; null: none does.
  [[nodiscard]] static const dist_pass* running_here() noexcept;
  /// Whether it adds to the gradients of its context.
  [[nodiscard]] bool accumulates() const noexcept { return header_->accumulates; }

 private:
  struct arrival {
    std::uint64_t message = 0;      // of this worker; or
    std::vector<root> roots;        // these
    std::vector<tensor> gradients;  // of the message
    std::vector<stream> valid_on;   // of gradients on devices
    // Valid on the current streams of their devices.
    static arrival of(std::uint64_t message, std::vector<tensor>&& gradients);
  };
  struct entry {
    node_ref what;
    stream on;
    std::uint64_t order = 0;
    std::uint32_t missing = 0;  // gradients that have not arrived
    std::uint32_t first = 0;    // of its values in values_
    std::uint32_t value_count = 0;
    std::uint32_t first_edge = 0;  // of its edges in edges_
    std::uint32_t edge_count = 0;
  };
  struct numbered_edge {
    std::uint32_t to = none;
    std::uint32_t value = 0;
    static constexpr std::uint32_t none = 0xffffffff;
  };
  // Where a pass has failed: at this worker, at another one that told it, or that told it in a message that is passed on anyway.
  enum class heard : std::uint8_t { here, elsewhere, in_echo };

  // On the thread that drives; nothing else touches what they use.
  std::uint32_t number_of(const node_ref& what);
  void discover(std::span<const root> roots);
  void find_watchers();
  void take(arrival&& arrived);
  void arrive(std::uint32_t number, std::uint32_t value, tensor&& gradient, const stream& from);
  void one_arrived(std::uint32_t number);
  void run_ready();
  void run_node(std::uint32_t number);
  void run_leaf(const entry& leaf, const engine_leaf& facts, gradient_value& gradient,
                std::vector<sparse_tensor>&& rows);
  void send_back(const entry& at, std::span<gradient_value> gradients);
  void use_stream(const stream& on);
  // Changes what outlives the pass: not at all if that is over, and its end waits for it. Not under the lock: it may run destructors
  // and updates of the program.
  template <class Addition>
  void unless_over(const Addition& add);
  void release(const node_ref& what);

  void deliver(arrival&& arrived);
  // Which one drives: the user's that begins the pass, or one of the worker's.
  enum class thread_of : std::uint8_t { caller, worker };
  void drive(thread_of which);
  // On a thread of the worker. False: not possible.
  bool drive_elsewhere() noexcept;
  // Whether the calling thread is the one that waits for this pass, and reads answers.
  [[nodiscard]] bool is_waited_for_here() const noexcept;
  void on_answer(const future<pass_answer>& call, const worker_info& whom);
  void answered(const pass_answer& answer);
  [[nodiscard]] bool can_wait_for_answer();
  [[nodiscard]] bool is_root() const noexcept { return !asker_; }
  [[nodiscard]] bool goes_to_asker(const node_ref& what) const noexcept;
  void finish_if_whole();
  void fail(const pass_failure& why, heard where);
  void end(const pass_failure& why, heard where);
  void tell_failure(const pass_failure& why);
  [[nodiscard]] bool takes_part(worker_id who) const;
  [[nodiscard]] std::string place() const;

  const std::shared_ptr<dist_context> context_;
  const std::shared_ptr<const pass_header> header_;
  const std::optional<worker_id> asker_;
  // Whichever message a thread comes with: a profile, for example, has what this part does from the call that it answers last.
  const context_values began_with_;
  promise<pass_answer> whole_;
  std::shared_ptr<time_limit> limit_;  // set under the mutex, and let go of by what sets over_

  // The graph stays, also if the context ends meanwhile.
  std::vector<std::shared_ptr<void>> kept_roots_;
  std::vector<std::shared_ptr<const sent_message>> kept_messages_;
  std::vector<entry> nodes_;
  std::vector<numbered_edge> edges_;
  std::vector<gradient_value> values_;
  std::unordered_map<std::uint32_t, std::vector<sparse_tensor>> rows_;  // that have arrived, of leaves
  std::unordered_map<const void*, std::uint32_t> numbers_;
  std::vector<std::uint32_t> ready_;                                      // a heap
  std::map<std::uint64_t, std::shared_ptr<const sent_message>> awaited_;  // messages whose gradients have not come
  std::size_t left_ = 0;                                                  // nodes that have not run
  std::size_t left_for_asker_ = 0;                                        // of these, those that send gradients there
  std::vector<pass_answer::gradients_back> held_;                         // for the answer
  std::vector<gradient_value> results_;
  struct wanted_value {
    std::uint32_t value;
    std::size_t place;  // in found_
  };
  std::vector<held_edge> wanted_;
  std::unordered_map<std::uint32_t, std::vector<wanted_value>> wanted_of_;  // by node
  std::vector<tensor> found_;

  std::atomic<bool> over_{false};  // set under the mutex
  mutable std::mutex mutex_;       // guards the rest
  std::vector<arrival> inbox_;
  std::vector<std::shared_ptr<const leaf_watcher>> watchers_;  // of leaves that it leads to
  bool driving_ = true;                                        // its maker drives first
  std::size_t unanswered_ = 0;
  std::vector<future<pass_answer>> calls_;  // with gradients, to other workers
  std::vector<stream> streams_;  // on which gradients were computed: the driving thread reads without the lock
  bool adding_ = false;          // within unless_over()
  bool straggles_ = false;       // over, and a thread still drives
  struct late_end {
    pass_failure why;
    heard where;
  };
  std::optional<late_end> late_end_;  // came while adding_
};

}  // namespace ferry::inline v0::detail
