#pragma once

#include <mutex>

#include <ferry/backend/agent.hpp>

#include "lock_ranks.hpp"

namespace ferry::inline v0::detail {

/// Tells the rpc layer what happens to members and connections, one event after the other. Thread-safe; the mutex is held
/// during the calls, so that none is running when set(nullptr) has returned.
class event_reports {
 public:
  void set(request_handler* listener) noexcept {
    const std::lock_guard lock(mutex_);
    listener_ = listener;
  }
  void member(const member_event& event) noexcept {
    const std::lock_guard lock(mutex_);
    if (listener_) listener_->on_member_event(event);
  }
  /// Makes the change that the event is about, and tells it unless `change` returns false. What others do once they see
  /// the change is told after it: a leave never before the join, an end never after the join of a successor.
  template <class Change>
  void member(const member_event& event, Change change) {
    const std::lock_guard lock(mutex_);
    if (change() && listener_) listener_->on_member_event(event);
  }
  void member_end(worker_id id, incarnation_id incarnation) noexcept {
    const std::lock_guard lock(mutex_);
    if (listener_) listener_->on_member_end(id, incarnation);
  }
  void link(const link_event& event) noexcept {
    const std::lock_guard lock(mutex_);
    if (listener_) listener_->on_link_event(event);
  }

 private:
  ranked_mutex mutex_{rank_of_events};
  request_handler* listener_ = nullptr;
};

}  // namespace ferry::inline v0::detail
