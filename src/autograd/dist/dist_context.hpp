#pragma once

// What one worker keeps of a context of distributed autograd.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ferry/autograd/dist/backward.hpp>
#include <ferry/autograd/dist/context.hpp>
#include <ferry/autograd/dist/engine.hpp>
#include <ferry/autograd/node.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/rpc/context_values.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "../graph/kept_gradient.hpp"
#include "autograd_record.hpp"
#include "message_set.hpp"
#include "pass_messages.hpp"
#include "wire_nodes.hpp"

namespace ferry::inline v0::detail {

class dist_pass;
class dist_worker;

/// A message whose tensors have gradients, at its sender.
struct sent_message {
  worker_id to;
  std::vector<held_edge> edges;    ///< of the tensors that require a gradient
  std::vector<value_facts> facts;  ///< of these tensors
};

/// Thread-safe. Its lock is taken after those of passes, never the other way round.
class dist_context final : public std::enable_shared_from_this<dist_context> {
 public:
  dist_context(std::shared_ptr<dist_worker> home, dist_autograd::context_id id);
  ~dist_context();
  dist_context(const dist_context&) = delete;
  dist_context& operator=(const dist_context&) = delete;

  [[nodiscard]] dist_autograd::context_id id() const noexcept { return id_; }
  [[nodiscard]] dist_worker& home() const noexcept { return *home_; }

  // The way forward.
  /// A message leaves for that worker: the record that goes with it; none if the context is over.
  std::optional<autograd_record> leave(std::span<tensor> tensors, worker_id to);
  /// The message was not sent.
  void take_back(std::uint64_t message) noexcept;
  /// The call failed: passes that take everything for used need not wait for it.
  void unused(std::uint64_t message) noexcept;
  /// A message has come: its tensors lead back to their sender. Throws errc::malformed for a record that does not fit them.
  void arrive(const autograd_record& record, std::span<tensor> tensors, const worker_info& from);

  // Passes.
  /// One pass at a time. Gives it its number, in its header. Throws errc::invalid_argument if one runs, or the context is over.
  void begin_pass(const std::shared_ptr<dist_pass>& pass, pass_header& header);
  /// The pass of that number; `make` makes it if it is new here. Null, and why, for one that has failed. Throws
  /// errc::invalid_argument if the context is over.
  struct joined {
    std::shared_ptr<dist_pass> pass;
    bool is_new = false;
    pass_failure failure = {};
  };
  joined join_pass(std::uint64_t number, const std::function<std::shared_ptr<dist_pass>()>& make);
  /// It has ended: another one may begin.
  void end_pass(const dist_pass& pass) noexcept;
  /// Of a pass that failed: what belongs to it and comes later is refused with that. Returns whether that was not known.
  bool note_failure(std::uint64_t pass, const pass_failure& failure);
  /// A pass that failed: whether its root's telling of that is to be passed on, which is so once.
  [[nodiscard]] bool begin_echo(std::uint64_t pass) noexcept;
  [[nodiscard]] std::shared_ptr<dist_pass> running_pass() const;
  /// The messages of this worker that take part in a pass. Those of `reached`, or all.
  [[nodiscard]] std::map<std::uint64_t, std::shared_ptr<const sent_message>> taking_part(
      const pass_header& header) const;
  /// Those of this worker among `messages`.
  [[nodiscard]] std::vector<std::shared_ptr<const sent_message>> sent_of(const message_set& messages) const;
  [[nodiscard]] std::vector<worker_id> known_workers() const;
  /// The number of the oldest node that stands for a message received here.
  [[nodiscard]] std::uint64_t first_received() const;

  // Gradients.
  /// Adds to that of a leaf, on the current stream of its device. Returns what it is now.
  dist_autograd::leaf_gradient accumulate(const engine_leaf& leaf, tensor&& dense, std::vector<sparse_tensor>&& rows);
  /// The same, in the place of what there is.
  void replace(const engine_leaf& leaf, const sparse_tensor& rows);
  /// Marks what these streams have been given as what readers of gradients wait for.
  void gradients_on(std::span<const stream> streams);
  /// The current streams wait for all gradients.
  void let_streams_wait() const;
  /// All of them; the current streams wait.
  [[nodiscard]] dist_autograd::gradient_map gradients() const;

  /// That of one leaf, by its identity, if it has any; the current stream of its device waits.
  [[nodiscard]] std::optional<dist_autograd::leaf_gradient> gradient_of(std::uintptr_t leaf) const;

  /// The context is over: drops everything. Returns the workers to which it was passed on; nothing the second time.
  std::vector<worker_id> release() noexcept;
  [[nodiscard]] bool is_over() const {
    const std::lock_guard lock(mutex_);
    return over_;
  }
  [[nodiscard]] dist_autograd::context_info info() const;

 private:
  struct kept_leaf {
    tensor leaf;
    kept_gradient gradient;
  };
  std::shared_ptr<kept_leaf> place_of(const engine_leaf& leaf);
  [[noreturn]] void refuse_over() const;
  static dist_autograd::leaf_gradient read(const kept_leaf& kept);
  void wait_for_gradients(device where) const;  // the current stream; under the lock

  const std::shared_ptr<dist_worker> home_;
  const dist_autograd::context_id id_;
  mutable std::mutex mutex_;  // guards the rest
  bool over_ = false;
  std::map<std::uint64_t, std::shared_ptr<const sent_message>> sent_;
  std::set<std::uint64_t> unused_;  // of these
  std::map<std::uint64_t, std::pair<worker_id, std::size_t>> received_;
  std::uint64_t first_received_ = last_message_number;
  std::set<worker_id> known_;
  std::shared_ptr<dist_pass> pass_;
  struct failed_pass {
    pass_failure why;
    bool echoed = false;
  };
  std::map<std::uint64_t, failed_pass> failed_passes_;
  std::deque<std::uint64_t> failed_in_order_;  // the oldest note goes first
  std::map<worker_id, std::uint64_t>
      last_ended_;  // by the worker that began them: passes of one come one after the other
  std::unordered_map<std::uintptr_t, std::shared_ptr<kept_leaf>> leaves_;
  std::vector<std::pair<stream, event>> ready_;  // what readers wait for
};

/// The context in force, as the value that goes along with code.
class context_in_force final : public travelling_value {
 public:
  explicit context_in_force(std::shared_ptr<dist_context> which) noexcept : which_(std::move(which)) {}
  [[nodiscard]] const std::shared_ptr<dist_context>& which() const noexcept { return which_; }
  void on_request(outgoing_request& request) const override;

 private:
  std::shared_ptr<dist_context> which_;
};
inline constexpr context_key<context_in_force> current_dist_context("ferry.dist_autograd.context");
/// That of this thread; null: there is none. One that is over may still be among the thread's values: it ended on another thread, or
/// within a scope of values that began later and goes on.
[[nodiscard]] std::shared_ptr<dist_context> context_of_thread() noexcept;

}  // namespace ferry::inline v0::detail
