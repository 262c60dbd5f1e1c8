#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <ferry/backend/agent.hpp>
#include <ferry/rpc/detail/owned_object.hpp>
#include <ferry/rpc/future.hpp>

#include "../protocol/reference_protocol.hpp"

namespace ferry::inline v0::detail {

class reference_state;
class reference_table;

/// Completes once the owner knows a fork; nobody but the table completes it.
class fork_known final : public future_state<void> {
 public:
  /// Of an object that a call of this worker is to make.
  std::weak_ptr<reference_state> of;

 private:
  void on_cancel() override {}
  bool help_wait(deadline until) override;
};

/// One fork of this worker, or one hold of the owner: what the copies of an rref share. Thread-safe.
class reference_state : public std::enable_shared_from_this<reference_state> {
 public:
  reference_state(std::shared_ptr<reference_table> references, const object_id& what)
      : table(std::move(references)), object(what) {}
  reference_state(std::shared_ptr<reference_table> references, const object_id& what, worker_info owner)
      : table(std::move(references)), object(what), owner_(std::move(owner)) {}
  /// Tells the table.
  ~reference_state();
  reference_state(const reference_state&) = delete;
  reference_state& operator=(const reference_state&) = delete;

  const std::shared_ptr<reference_table> table;
  const object_id object;
  std::optional<held_fork> fork;  ///< none: at the owner
  ref_ptr<owned_object> local;    ///< at the owner
  /// Of a fork that the owner did not know when it was made, and of an object that this worker makes here. Null: it did.
  ref_ptr<fork_known> known;

  /// Throws errc::peer_lost if the group has no such worker any more. Where this worker's list of members is behind, it waits
  /// for the store, until then at the longest; errc::rpc_timeout.
  [[nodiscard]] located_worker owner(deadline until) const;
  [[nodiscard]] bool confirmed() const noexcept { return !known || known->has_value(); }
  /// It is of no use any more. The first reason stays.
  void end(std::exception_ptr why) noexcept;
  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  /// Throws what it has ended with.
  void check() const {
    if (ended()) throw_ended();
  }

  /// The future of the object's type, made by `ask`, again if it has failed.
  template <class Ask>
  future<std::string> type(Ask&& ask) {
    const std::lock_guard lock(type_mutex_);
    if (!type_.valid() || type_.failed()) type_ = ask();
    return type_;
  }

 private:
  [[noreturn]] void throw_ended() const;

  mutable std::mutex mutex_;  // guards the next two
  mutable worker_info owner_;
  std::exception_ptr end_;
  std::mutex type_mutex_;  // guards the next one; who asks takes the other one, too
  future<std::string> type_;
  std::atomic<bool> ended_{false};
};

}  // namespace ferry::inline v0::detail
