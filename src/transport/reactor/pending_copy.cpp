#include "pending_copy.hpp"

#include <chrono>
#include <new>
#include <unordered_map>
#include <utility>

namespace ferry::inline v0::detail {
namespace {

// A stream callback gets only the number of a pending copy: a failed device never calls back, and with an owning
// pointer it would keep the message for ever.
struct pending_copy_table {
  std::mutex mutex;
  std::unordered_map<std::size_t, std::shared_ptr<pending_copy>> entries;
  std::size_t next = 1;
};

pending_copy_table& pending_copies() {
  static auto* const table = new pending_copy_table;  // a device's runtime may still call back while the process ends
  return *table;
}

// How often a timer checks whether the device has failed.
constexpr std::chrono::milliseconds device_poll_interval{50};

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
  for (const stream& each : streams) events_.push_back(each.record());
  missing_.store(streams.size());
  pending_copy_table& table = pending_copies();
  {
    const std::lock_guard lock(table.mutex);
    id_ = table.next++;
    table.entries.emplace(id_, shared_from_this());
  }
  {
    const std::lock_guard lock(mutex_);
    start_timer();
  }
  for (const stream& each : streams)
    each.call_on_host(&on_stream_done, reinterpret_cast<void*>(id_));  // NOLINT(performance-no-int-to-ptr)
}

// Runs on a thread of the device's runtime, which must not be blocked: nothing is destroyed here.
void pending_copy::on_stream_done(void* id) noexcept {
  pending_copy_table& table = pending_copies();
  const std::lock_guard lock(table.mutex);
  const auto found = table.entries.find(reinterpret_cast<std::size_t>(id));
  if (found == table.entries.end()) return;
  pending_copy& self = *found->second;
  if (self.missing_.fetch_sub(1) != 1) return;
  self.arrival_.self = std::move(found->second);
  table.entries.erase(found);
  self.arrival_.run = [](work* item) noexcept {
    const auto owner = std::move(static_cast<task*>(item)->self);
    owner->finish(nullptr);
  };
  self.threads_->post(&self.arrival_);
}

// With mutex_ held.
void pending_copy::start_timer() {
  tick_.self = shared_from_this();
  tick_.run = [](work* item) noexcept {
    const auto owner = std::move(static_cast<task*>(item)->self);
    owner->look();
  };
  try {
    timer_ = threads_->start_timer(deadline::after(device_poll_interval), &tick_);
  } catch (...) {
    tick_.self.reset();  // the caller holds a reference, too
    throw;
  }
}

void pending_copy::look() noexcept {
  std::exception_ptr failure;
  try {
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;
      for (const event& each : events_) (void)each.done();
      timer_ = timer_id::none;
      try {
        start_timer();
      } catch (const std::bad_alloc&) {  // the device's callback still reports completion
      }
    }
    if (on_wait_) on_wait_();
    return;
  } catch (...) {
    failure = std::current_exception();
  }
  finish(std::move(failure));
}

void pending_copy::finish(std::exception_ptr failure) noexcept {
  std::shared_ptr<pending_copy> waiting;
  std::shared_ptr<pending_copy> listed;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(finished_, true)) return;
    if (timer_ != timer_id::none && threads_->cancel_timer(timer_)) waiting = std::move(tick_.self);
  }
  {
    pending_copy_table& table = pending_copies();
    const std::lock_guard lock(table.mutex);
    if (const auto found = table.entries.find(id_); found != table.entries.end()) {
      listed = std::move(found->second);
      table.entries.erase(found);
    }
  }
  const callback on_done = std::move(on_done_);
  on_done(std::move(failure));
}

}  // namespace ferry::inline v0::detail
