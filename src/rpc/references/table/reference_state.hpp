#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <ferry/backend/agent.hpp>
#include <ferry/rpc/detail/owned_object.hpp>
#include <ferry/rpc/future.hpp>

#include "../protocol/reference_protocol.hpp"

namespace ferry::inline v0::detail {

class reference_state;
class reference_table;

/// Completes once the owner has registered a fork. Only the table completes it.
class fork_known final : public future_state<void> {
 public:
  /// Set for an object that a call of this worker is to make.
  std::weak_ptr<reference_state> of;

 private:
  void on_cancel() override {}
  bool help_wait(deadline until) override;
};

/// One fork of this worker, or one local hold at the owner: the state that copies of an rref share. Thread-safe.
class reference_state : public std::enable_shared_from_this<reference_state> {
 public:
  reference_state(std::shared_ptr<reference_table> references, const object_id& what)
      : table(std::move(references)), object(what) {}
  reference_state(std::shared_ptr<reference_table> references, const object_id& what, worker_info owner)
      : table(std::move(references)), object(what), owner_(std::move(owner)) {}
  /// Notifies the table.
  ~reference_state();
  reference_state(const reference_state&) = delete;
  reference_state& operator=(const reference_state&) = delete;

  const std::shared_ptr<reference_table> table;
  const object_id object;
  std::optional<held_fork> fork;  ///< none: at the owner
  /// Set for a fork that the owner had not registered when it was created, and for an object that this worker makes
  /// locally. Otherwise null.
  ref_ptr<fork_known> known;

  /// Throws errc::peer_lost if the worker is no longer in the group. If this worker's member list is out of date, it
  /// waits for the store, at most until `until`; then throws errc::rpc_timeout.
  [[nodiscard]] located_worker owner(deadline until) const;
  [[nodiscard]] bool confirmed() const noexcept { return !known || known->has_value(); }
  /// Call before the state is shared.
  void set_local(ref_ptr<owned_object> object) noexcept { local_ = std::move(object); }
  /// The object, at the owner until drop_local(); otherwise null.
  [[nodiscard]] ref_ptr<owned_object> local() const noexcept {
    const std::lock_guard lock(mutex_);
    return local_;
  }
  /// At the end of the worker: keeps the object no longer. It may be destroyed by this call.
  void drop_local() noexcept;
  /// The reference fails from now on. The first error is kept.
  void end(std::exception_ptr why) noexcept;
  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  /// Throws the error it has ended with.
  void check() const {
    if (ended()) throw_ended();
  }

  /// The future of the object's type, made by `ask`; made anew if it has failed.
  template <class Ask>
  future<std::string> type(Ask&& ask) {
    const std::lock_guard lock(type_mutex_);
    if (!type_.valid() || type_.failed()) type_ = ask();
    return type_;
  }

 private:
  [[noreturn]] void throw_ended() const;

  mutable std::mutex mutex_;  // guards the next three
  ref_ptr<owned_object> local_;
  mutable worker_info owner_;
  std::exception_ptr end_;
  std::mutex type_mutex_;  // guards the next one; `ask` also locks mutex_
  future<std::string> type_;
  std::atomic<bool> ended_{false};
};

}  // namespace ferry::inline v0::detail
