#include "pending_copy.hpp"

#include <chrono>
#include <new>
#include <utility>

namespace ferry::inline v0::detail {
namespace {

// How often `on_wait` is called.
constexpr std::chrono::milliseconds wait_interval{50};

}  // namespace

void pending_copy::watch(std::shared_ptr<reactor> threads, const std::vector<stream>& streams, callback on_done,
                         std::function<void()> on_wait) noexcept {
  std::shared_ptr<pending_copy> self;
  if (auto why = [&]() noexcept -> std::exception_ptr {
        try {
          self = std::make_shared<pending_copy>(std::move(threads));
          self->on_done_ = std::move(on_done);
          self->on_wait_ = std::move(on_wait);
          self->begin(streams);
          return nullptr;
        } catch (...) {
          return std::current_exception();
        }
      }()) {
    if (self) return self->finish(std::move(why));
    on_done(std::move(why));
  }
}

void pending_copy::begin(const std::vector<stream>& streams) {
  std::vector<std::pair<stream, event>> marks;
  marks.reserve(streams.size());
  for (const stream& each : streams) marks.emplace_back(each, each.record());
  missing_.store(marks.size());
  if (on_wait_) {
    const std::lock_guard lock(mutex_);
    start_timer();
  }
  // The last one may be reported at once, and the caller's streams are gone then.
  for (auto& [on, mark] : marks) completion_poller::of_process().add(on, std::move(mark), shared_from_this());
}

void pending_copy::reached(std::exception_ptr failure) noexcept {
  const bool last = missing_.fetch_sub(1) == 1;
  if (failure ? failed_.exchange(true) : !last || failed_.load()) return;
  failure_ = std::move(failure);
  arrival_.self = shared_from_this();
  arrival_.run = [](work* item) noexcept {
    const auto owner = std::move(static_cast<task*>(item)->self);
    owner->finish(owner->failure_);
  };
  threads_->post(&arrival_);
}

// With mutex_ held.
void pending_copy::start_timer() {
  tick_.self = shared_from_this();
  tick_.run = [](work* item) noexcept {
    const auto owner = std::move(static_cast<task*>(item)->self);
    owner->look();
  };
  try {
    timer_ = threads_->start_timer(deadline::after(wait_interval), &tick_);
  } catch (...) {
    tick_.self.reset();  // the caller holds a reference, too
    throw;
  }
}

void pending_copy::look() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    timer_ = timer_id::none;
    try {
      start_timer();
    } catch (const std::bad_alloc&) {  // the poller still reports completion
    }
  }
  on_wait_();
}

void pending_copy::finish(std::exception_ptr failure) noexcept {
  std::shared_ptr<pending_copy> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(finished_, true)) return;
    if (timer_ != timer_id::none && threads_->cancel_timer(timer_)) waiting = std::move(tick_.self);
  }
  const callback on_done = std::move(on_done_);
  on_done(std::move(failure));
}

}  // namespace ferry::inline v0::detail
