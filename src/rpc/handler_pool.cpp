#include "handler_pool.hpp"

#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/rpc/context.hpp>

#include "../transport/io_threads.hpp"

namespace ferry::inline v0::detail {
namespace {
thread_local constinit bool item_was_queued = false;
}

bool handler_pool::runs_what_was_queued() noexcept { return item_was_queued; }

handler_pool::handler_pool(std::shared_ptr<reactor> threads, int limit, int max_blocked,
                           void (*idle_changed)(void*) noexcept, void* argument)
    : threads_(std::move(threads)),
      limit_(limit),
      max_blocked_(max_blocked),
      idle_changed_(idle_changed),
      argument_(argument) {}

int handler_pool::running() const noexcept {
  std::lock_guard lock(mutex_);
  return running_;
}

int handler_pool::blocked() const noexcept {
  std::lock_guard lock(mutex_);
  return blocked_;
}

bool handler_pool::busy() const noexcept {
  std::lock_guard lock(mutex_);
  return running_ != 0 || blocked_ != 0 || backlog_head_ != nullptr;
}

bool handler_pool::wait_idle(deadline until) noexcept {
  std::unique_lock lock(mutex_);
  const auto idle = [&] { return running_ == 0 && blocked_ == 0 && backlog_head_ == nullptr; };
  if (until.is_never()) {
    idle_.wait(lock, idle);
    return true;
  }
  return idle_.wait_until(lock, until.at(), idle);
}

void handler_pool::forget_owner() noexcept {
  std::lock_guard lock(mutex_);
  idle_changed_ = nullptr;
}

// With the mutex held: counts one more as running and returns a runner for it. Null if all places are taken.
handler_pool::runner* handler_pool::take_place() noexcept {
  if (running_ >= limit_) return nullptr;
  if (free_runners_.empty()) {
    // More than limit_ runners exist only while handlers that returned from a wait finish.
    auto fresh = std::make_unique<runner>();
    fresh->run = &handler_pool::run;
    free_runners_.reserve(runners_.size() + 1);
    free_runners_.push_back(fresh.get());
    runners_.push_back(std::move(fresh));
  }
  ++running_;
  runner* result = free_runners_.back();
  free_runners_.pop_back();
  return result;
}

void handler_pool::launch(runner* free, work* item, bool elsewhere) noexcept {
  free->item = item;
  free->queued = elsewhere;
  free->pool = shared_from_this();
  if (elsewhere) {
    static_cast<io_threads&>(*threads_).post_elsewhere(free);
  } else {
    threads_->post(free);
  }
}

void handler_pool::submit(work* item) noexcept {
  runner* free = nullptr;
  {
    std::lock_guard lock(mutex_);
    free = returning_.empty() ? take_place() : nullptr;
    if (!free) {
      item->next = nullptr;
      (backlog_tail_ ? backlog_tail_->next : backlog_head_) = item;
      backlog_tail_ = item;
      return;
    }
  }
  launch(free, item, false);
}

void handler_pool::run(work* self) noexcept {
  auto* own = static_cast<runner*>(self);
  const std::shared_ptr<handler_pool> pool = std::move(own->pool);
  blocking_observer* previous = set_blocking_observer(pool.get());
  const bool outer = item_was_queued;
  work* item = own->item;
  item_was_queued = own->queued;
  while (item) {
    item->next = nullptr;
    item->run(item);
    item = pool->next_item(own);
    item_was_queued = true;
  }
  item_was_queued = outer;
  set_blocking_observer(previous);
}

// The place goes to a handler that returns from a wait, else to the next item, else it becomes free.
work* handler_pool::next_item(runner* done) noexcept {
  std::lock_guard lock(mutex_);
  if (!returning_.empty()) {
    returning_.front()->admitted = true;
    returning_.pop_front();
    admitted_.notify_all();
    free_runners_.push_back(done);
    return nullptr;
  }
  if (work* item = backlog_head_) {
    backlog_head_ = item->next;
    if (!backlog_head_) backlog_tail_ = nullptr;
    return item;
  }
  --running_;
  free_runners_.push_back(done);
  if (running_ == 0 && blocked_ == 0) {
    idle_.notify_all();
    if (idle_changed_) idle_changed_(argument_);
  }
  return nullptr;
}

void handler_pool::before_blocking() {
  runner* free = nullptr;
  work* item = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (blocked_ >= max_blocked_) {
      throw_error(
          errc::resource_exhausted,
          fmt::format("{} handlers of this worker already wait, each on a thread of its own (max_blocked_handlers); "
                      "let handlers that wait return a future or a task instead of blocking",
                      blocked_));
    }
    ++blocked_;
    --running_;
    if (!returning_.empty()) {
      returning_.front()->admitted = true;
      returning_.pop_front();
      ++running_;
      admitted_.notify_all();
    } else if (backlog_head_) {
      free = take_place();
      if (free) {
        item = backlog_head_;
        backlog_head_ = item->next;
        if (!backlog_head_) backlog_tail_ = nullptr;
      }
    }
  }
  if (free) launch(free, item, true);
  if (call_context* context = thread_context()) context->count_wait(1);
  io_threads::suspend_batching();
}

void handler_pool::after_blocking() noexcept {
  {
    std::unique_lock lock(mutex_);
    if (running_ < limit_) {
      ++running_;
    } else {
      returning self;
      returning_.push_back(&self);
      admitted_.wait(lock, [&] { return self.admitted; });
    }
    --blocked_;
  }
  if (call_context* context = thread_context()) context->count_wait(-1);
  io_threads::resume_batching();
}

}  // namespace ferry::inline v0::detail
