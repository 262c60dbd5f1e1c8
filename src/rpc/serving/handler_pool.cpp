#include "handler_pool.hpp"

#include <new>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/rpc/context.hpp>

#include "../../base/thread_exit.hpp"

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
      argument_(argument),
      free_runners_(new runner) {}

handler_pool::~handler_pool() {
  while (free_runners_) delete std::exchange(free_runners_, free_runners_->next_free);
}

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

// Call this and the next four functions with the mutex held.
bool handler_pool::have_free_runner() noexcept {
  if (free_runners_) return true;
  auto* fresh = new (std::nothrow) runner;
  if (fresh) free_runner(fresh);
  return fresh != nullptr;
}

// Counts one more handler as running and returns its runner. Null if all places are taken, or memory runs out.
handler_pool::runner* handler_pool::take_place() noexcept {
  // More than limit_ runners exist only while handlers that returned from a wait finish.
  if (running_ >= limit_ || !have_free_runner()) return nullptr;
  ++running_;
  return std::exchange(free_runners_, free_runners_->next_free);
}

void handler_pool::free_runner(runner* done) noexcept { done->next_free = std::exchange(free_runners_, done); }

work* handler_pool::take_backlog() noexcept {
  work* item = backlog_head_;
  if (!item) return nullptr;
  backlog_head_ = item->next;
  if (!backlog_head_) backlog_tail_ = nullptr;
  return item;
}

// Passes the caller's place to the first handler that returns from a wait; false if there is none.
bool handler_pool::admit_returning() noexcept {
  returning* first = returning_head_;
  if (!first) return false;
  returning_head_ = first->next;
  if (!returning_head_) returning_tail_ = nullptr;
  first->admitted = true;
  admitted_.notify_all();
  return true;
}

void handler_pool::launch(runner* free, work* item, bool elsewhere) noexcept {
  free->item = item;
  free->queued = elsewhere;
  free->pool = shared_from_this();
  if (elsewhere) {
    threads_->post_elsewhere(free);
  } else {
    threads_->post(free);
  }
}

void handler_pool::submit(work* item) noexcept {
  runner* free = nullptr;
  {
    std::lock_guard lock(mutex_);
    free = returning_head_ ? nullptr : take_place();
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
    if (item && thread_exit_was_held()) {  // this thread is about to end
      pool->launch(own, item, true);
      break;
    }
  }
  item_was_queued = outer;
  set_blocking_observer(previous);
}

// Passes the place to a handler that returns from a wait, else to the next item, else frees it.
work* handler_pool::next_item(runner* done) noexcept {
  std::lock_guard lock(mutex_);
  const bool given = admit_returning();
  if (!given) {
    if (work* item = take_backlog()) return item;
    --running_;
  }
  free_runner(done);
  if (!given && running_ == 0 && blocked_ == 0) {
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
    if (!have_free_runner()) throw std::bad_alloc();
    ++blocked_;
    if (!admit_returning()) {
      --running_;
      if (backlog_head_) free = take_place();
      if (free) item = take_backlog();
    }
  }
  if (free) launch(free, item, true);
  if (call_context* context = thread_context()) context->count_wait(1);
  threads_->begin_blocking();
}

void handler_pool::after_blocking() noexcept {
  // Before it takes a place: it may wait for its turn at an object, held by a handler that waits for a place.
  if (call_context* context = thread_context()) context->count_wait(-1);
  {
    std::unique_lock lock(mutex_);
    if (running_ < limit_) {
      ++running_;
    } else {
      returning self;
      (returning_tail_ ? returning_tail_->next : returning_head_) = &self;
      returning_tail_ = &self;
      admitted_.wait(lock, [&] { return self.admitted; });
    }
    --blocked_;
  }
  threads_->end_blocking();
}

}  // namespace ferry::inline v0::detail
