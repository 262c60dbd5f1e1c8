#include "io_threads.hpp"

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "../../base/thread_exit.hpp"
#include "held_output.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::uint64_t wake_tag = ~std::uint64_t{0};
constexpr std::uint64_t stop_tag = ~std::uint64_t{1};
constexpr int spare_threads = 2;            // waiting threads that never retire
constexpr int retire_after_ms = 10'000;     // the others retire after this idle time
constexpr std::size_t max_threads = 16384;  // each blocked handler occupies one; agents bound their number
constexpr int quiet_ticks = 16;             // looks at nothing deferred before the monitor sleeps until it is asked
// Between two such looks, at first. Most of what is deferred is done by then, and a look costs a process that shares its
// processors with many others more than anything else that it does not need.
constexpr std::chrono::milliseconds quiet_tick{4};
constexpr int looks_before_longer = 32;  // in vain; after twice as many the longest pause
constexpr int longest_pause = 4;         // in quiet ticks

// The threads have got along by themselves for so many looks.
std::chrono::milliseconds pause_after(int looks_in_vain) noexcept {
  if (looks_in_vain < looks_before_longer) return quiet_tick;
  return looks_in_vain < 2 * looks_before_longer ? 2 * quiet_tick : longest_pause * quiet_tick;
}

// What need not be looked at soon is looked at together, so that one wake-up of the monitor is enough: at multiples of the
// interval, the first time after half of it to one and a half.
clock::time_point next_look(clock::time_point now, std::chrono::milliseconds interval) noexcept {
  if (interval < quiet_tick) return now + interval;
  const auto due = now + interval / 2;
  const auto past = due.time_since_epoch() % interval;
  return past == clock::duration::zero() ? due : due - past + interval;
}

std::atomic<bool> forked_child{false};

void mark_forked_child() noexcept { forked_child.store(true); }

std::uint32_t epoll_events(bool readable, bool writable) noexcept {
  std::uint32_t events = EPOLLET;
  if (readable) events |= EPOLLIN | EPOLLRDHUP;
  if (writable) events |= EPOLLOUT;
  return events;
}

}  // namespace

bool is_forked_child() noexcept { return forked_child.load(std::memory_order_relaxed); }

void check_not_forked() {
  if (is_forked_child()) {
    throw_error(errc::forked_process,
                "this process was forked from one that had initialised ferry; its threads and connections do not exist "
                "here. Fork before init_rpc, or start a new program with exec");
  }
}

struct io_threads::thread_state {
  io_threads* owner = nullptr;
  thread_batch batch;
  bool batching = false;                       // owned by the thread: it is between two waits for events
  bool running = false;                        // owned by the thread: inside an item
  int suspended = 0;                           // owned by the thread: > 0 while nothing may be deferred
  std::shared_ptr<descriptor_handler> source;  // of the only event of this round
  // Owned by the thread: `source` if it may linger, or what a work item gave to linger_on().
  std::shared_ptr<lingering_connection> lingering;
  bool will_linger = false;  // owned by the thread: it calls lingering->linger() before it does anything else

  [[nodiscard]] bool holds_back() const noexcept { return batching && suspended == 0; }
};

namespace {
thread_local void* current_state = nullptr;
}

io_threads::thread_state* io_threads::own_state() const noexcept {
  auto* const state = static_cast<thread_state*>(current_state);
  return state && state->owner == this ? state : nullptr;
}

io_threads::io_threads() {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  wake_event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  stop_event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const int reason = errno;
  if (epoll_ < 0 || wake_event_ < 0 || stop_event_ < 0) {
    for (int fd : {epoll_, wake_event_, stop_event_}) {
      if (fd >= 0) ::close(fd);
    }
    throw_errno(errc::system_failure, "creating the event loop (epoll, eventfd)", reason);
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = wake_tag;
  ::epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_event_, &event);
  event.events = EPOLLIN;
  event.data.u64 = stop_tag;
  ::epoll_ctl(epoll_, EPOLL_CTL_ADD, stop_event_, &event);
}

io_threads::~io_threads() {
  if (monitor_.joinable()) monitor_.detach();  // only when stop() ran on the monitor itself
  ::close(epoll_);
  ::close(wake_event_);
  ::close(stop_event_);
}

void io_threads::start() {
  try {
    monitor_ = std::thread([self = self()] { self->monitor_main(); });
  } catch (const std::system_error& e) {
    throw_error(errc::system_failure, std::string("starting the monitor thread: ") + e.what());
  }
  spawn();
  if (threads_.load() == 0) {
    stop();
    throw_error(errc::system_failure,
                "starting the first reactor thread failed; is the process limit reached (ulimit -u)?");
  }
}

void io_threads::stop() noexcept {
  stopping_.store(true);
  std::uint64_t one = 1;
  (void)!::write(stop_event_, &one, sizeof one);
  const std::size_t own = own_state() ? 1 : 0;
  {
    std::unique_lock lock(threads_mutex_);
    threads_changed_.wait(lock, [&] { return threads_.load() <= own; });
  }
  {
    std::lock_guard lock(monitor_mutex_);
    monitor_stop_ = true;
  }
  monitor_wake_.notify_all();
  if (monitor_.joinable() && monitor_.get_id() != std::this_thread::get_id()) monitor_.join();
  // A connection that is still watched owns the loop, which owns the connection.
  std::vector<std::shared_ptr<descriptor_handler>> watched;  // destroyed outside the locks
  std::vector<later_watch> later;
  {
    std::lock_guard lock(table_mutex_);
    for (registration& entry : table_) {
      if (!entry.handler) continue;
      ::epoll_ctl(epoll_, EPOLL_CTL_DEL, entry.descriptor, nullptr);
      watched.push_back(std::move(entry.handler));
      entry = {nullptr, -1, entry.generation + 1};
    }
  }
  std::lock_guard lock(watches_mutex_);
  later.swap(watches_);
}

bool io_threads::spawn() noexcept {
  if (threads_.load(std::memory_order_relaxed) >= max_threads) {
    if (!warned_.exchange(true)) {
      log(log_level::error,
          "the process has as many reactor threads as are allowed; further work waits until one is free");
    }
    return false;
  }
  spawning_.fetch_add(1);
  threads_.fetch_add(1);
  try {
    {
      std::lock_guard lock(threads_mutex_);
      states_.reserve(threads_.load());
    }
    std::thread([self = self()] { self->thread_main(); }).detach();
    return true;
  } catch (const std::exception& e) {
    spawning_.fetch_sub(1);
    {
      std::lock_guard lock(threads_mutex_);
      threads_.fetch_sub(1);
      threads_changed_.notify_all();
    }
    log(log_level::error, std::string("cannot start another reactor thread: ") + e.what());
    return false;
  }
}

void io_threads::ensure_poller() noexcept {
  if (waiters_.load(std::memory_order_relaxed) == 0 && spawning_.load(std::memory_order_relaxed) == 0) spawn();
}

void io_threads::thread_main() noexcept {
  ::pthread_setname_np(::pthread_self(), "ferry-io");
  // A handler may learn the thread's id; a cancellation would end the thread in the middle of another one's work.
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  thread_state self;
  self.owner = this;
  current_state = &self;
  {
    std::lock_guard lock(threads_mutex_);
    states_.push_back(&self);
  }
  bool counted = true;  // spawning_ is lowered once this thread waits or works
  for (;;) {
    if (thread_exit_was_held() && spawn()) break;  // without a replacement it stays
    if (work* item = pop_global()) {
      if (counted) spawning_.fetch_sub(1), counted = false;
      if (queue_size_.load(std::memory_order_relaxed) != 0) wake_one();
      self.batching = true;
      ensure_poller();
      run_item(self, item);
      finish_and_linger(self);
      self.batching = false;
      self.lingering.reset();
      continue;
    }
    if (stopping_.load()) break;
    const int waiting = waiters_.fetch_add(1) + 1;
    if (counted) spawning_.fetch_sub(1), counted = false;
    if (queue_size_.load() != 0 || stopping_.load()) {
      waiters_.fetch_sub(1);
      continue;
    }
    // Take one event only: further ones would wait behind the work of this one, and no other thread would receive them.
    epoll_event event{};
    const int timeout = waiting > spare_threads ? retire_after_ms : -1;
    const int count = ::epoll_wait(epoll_, &event, 1, timeout);
    const int left = waiters_.fetch_sub(1) - 1;
    if (count == 0 && left >= spare_threads && queue_size_.load() == 0) break;
    if (count <= 0) continue;

    if (event.data.u64 == wake_tag) wake_pending_.store(false);
    if (event.data.u64 == wake_tag || event.data.u64 == stop_tag) continue;
    self.source = handler_of(event.data.u64);
    if (!self.source) continue;
    events_.fetch_add(1, std::memory_order_relaxed);
    self.lingering = std::dynamic_pointer_cast<lingering_connection>(self.source);
    self.will_linger = self.lingering != nullptr;
    self.batching = true;
    ensure_poller();
    self.source->on_ready({.readable = (event.events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0,
                           .writable = (event.events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0,
                           .hung_up = (event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0});
    // Work queued meanwhile may have counted this thread as waiting and skipped the wake-up.
    if (queue_size_.load() != 0) wake_one();
    finish_and_linger(self);
    self.batching = false;
    self.lingering.reset();
    self.source.reset();
  }
  if (counted) spawning_.fetch_sub(1);
  current_state = nullptr;
  std::lock_guard lock(threads_mutex_);
  states_.erase(std::find(states_.begin(), states_.end(), &self));
  threads_.fetch_sub(1);
  threads_changed_.notify_all();
}

// Runs the batch, and further ones as long as the connection that caused it has more, for which this thread waits.
void io_threads::finish_and_linger(thread_state& self) noexcept {
  finish_batch(self);
  while (self.lingering) {
    if (queue_size_.load(std::memory_order_relaxed) != 0 || stopping_.load(std::memory_order_relaxed) ||
        thread_exit_was_held()) {
      // There is other work, or this thread ends: others receive the connection's next event.
      self.will_linger = false;
      self.lingering->resume_watching(true);
      break;
    }
    ensure_poller();
    const bool more = self.will_linger = self.lingering->linger(*this);
    // Without a message the connection may have ended meanwhile and have queued its cleanup in the batch.
    finish_batch(self);
    if (!more) break;
  }
}

bool io_threads::linger_on(const std::shared_ptr<lingering_connection>& of) noexcept {
  auto* self = own_state();
  if (stopping_.load(std::memory_order_relaxed)) return false;  // no monitor would take it back
  if (!self || !self->holds_back() || !self->running || self->source || self->lingering) return false;
  self->lingering = of;
  return true;
}

// The final flush may fail, or free space, and so queue further work.
void io_threads::finish_batch(thread_state& self) noexcept {
  held_output::release();  // of a continuation that ran while this thread read
  do {
    run_batch(self);
    self.batch.flush_corked();
  } while (!self.batch.empty());
}

void io_threads::run_batch(thread_state& self) noexcept {
  while (!self.batch.empty()) {
    work* const item = self.batch.pop();
    if (!item) return;
    if (!self.batch.empty()) request_ticks();
    ensure_poller();
    run_item(self, item);
  }
}

void io_threads::run_item(thread_state& self, work* item) noexcept {
  self.batch.note_progress();
  item->next = nullptr;
  self.running = true;
  item->run(item);
  self.running = false;
  held_output::release();
  if (thread_exit_was_held()) begin_blocking();  // other threads take what this one holds, and will get
}

void io_threads::post(work* item) noexcept {
  auto* self = own_state();
  if (!self || !self->holds_back()) return post_elsewhere(item);
  const bool alone = self->batch.empty();
  self->batch.push(item, self->running);
  if (!alone || self->running) request_ticks();  // it may run behind a slow item
}

void io_threads::post_elsewhere(work* item) noexcept {
  item->next = nullptr;
  push_global({item, item, 1});
  wake_one();
}

void io_threads::push_global(const work_list& items) noexcept {
  std::lock_guard lock(queue_mutex_);
  queue_.append(items);
  queue_size_.fetch_add(items.count);
}

work* io_threads::pop_global() noexcept {
  if (queue_size_.load() == 0) return nullptr;
  std::lock_guard lock(queue_mutex_);
  work* item = queue_.head;
  if (!item) return nullptr;
  queue_.head = item->next;
  if (!queue_.head) queue_.tail = nullptr;
  --queue_.count;
  queue_size_.fetch_sub(1);
  item->next = nullptr;
  return item;
}

void io_threads::wake_one() noexcept {
  if (threads_.load() == 0) {
    spawn();  // stopped: a new thread drains late work, then ends
  } else if (waiters_.load() > 0 && !wake_pending_.exchange(true)) {
    std::uint64_t one = 1;
    (void)!::write(wake_event_, &one, sizeof one);
  } else if (waiters_.load() == 0) {
    ensure_poller();
  }
}

std::shared_ptr<descriptor_handler> io_threads::handler_of(std::uint64_t id) noexcept {
  const auto index = static_cast<std::uint32_t>(id);
  const auto generation = static_cast<std::uint32_t>(id >> 32U);
  std::lock_guard lock(table_mutex_);
  if (index >= table_.size() || table_[index].generation != generation) return nullptr;
  return table_[index].handler;
}

watch_id io_threads::watch(int descriptor, std::shared_ptr<descriptor_handler> handler, bool readable, bool writable) {
  std::uint64_t id = 0;
  {
    std::lock_guard lock(table_mutex_);
    std::uint32_t index = 0;
    if (!free_registrations_.empty()) {
      index = free_registrations_.back();
      free_registrations_.pop_back();
    } else {
      index = static_cast<std::uint32_t>(table_.size());
      free_registrations_.reserve(table_.size() + 1);  // so that unwatch never throws
      table_.emplace_back();
      table_.back().generation = 1;
    }
    table_[index].handler = std::move(handler);
    table_[index].descriptor = descriptor;
    id = (std::uint64_t{table_[index].generation} << 32U) | index;
  }
  epoll_event event{};
  event.events = epoll_events(readable, writable);
  event.data.u64 = id;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) {
    const int reason = errno;
    unwatch(watch_id{id});
    throw_errno(errc::system_failure, "watching a descriptor (epoll_ctl)", reason);
  }
  return watch_id{id};
}

void io_threads::rewatch(watch_id watch, bool readable, bool writable) noexcept {
  const auto id = static_cast<std::uint64_t>(watch);
  const auto index = static_cast<std::uint32_t>(id);
  epoll_event event{};
  event.events = epoll_events(readable, writable);
  event.data.u64 = id;
  std::lock_guard lock(table_mutex_);
  if (index >= table_.size() || table_[index].generation != static_cast<std::uint32_t>(id >> 32U)) return;
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, table_[index].descriptor, &event);
}

void io_threads::unwatch(watch_id watch) noexcept {
  const auto id = static_cast<std::uint64_t>(watch);
  const auto index = static_cast<std::uint32_t>(id);
  std::shared_ptr<descriptor_handler> released;  // destroyed outside the lock
  std::lock_guard lock(table_mutex_);
  if (index >= table_.size() || table_[index].generation != static_cast<std::uint32_t>(id >> 32U)) return;
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, table_[index].descriptor, nullptr);
  released = std::move(table_[index].handler);
  table_[index].handler = nullptr;
  table_[index].descriptor = -1;
  ++table_[index].generation;
  free_registrations_.push_back(index);
}

bool io_threads::has_more_work() const noexcept {
  const auto* self = own_state();
  return self && self->holds_back() && !self->batch.empty();
}

bool io_threads::reads_next(const descriptor_handler& which) const noexcept {
  const auto* self = own_state();
  return self && self->holds_back() && self->will_linger && self->source.get() == &which;
}

bool io_threads::flush_later(const std::shared_ptr<deferred_io>& item) noexcept {
  auto* self = own_state();
  if (!self || !self->holds_back()) return false;
  if (self->batch.empty() || !self->batch.cork(item)) return false;
  if (!self->running) request_ticks();  // the batch still to be run may be slow
  return true;
}

void io_threads::begin_blocking() noexcept {
  auto* self = own_state();
  if (!self) return;
  ++self->suspended;
  if (const work_list left = self->batch.take_all(); left.head) push_global(left);
  if (queue_size_.load() != 0) wake_one();
  self->batch.flush_corked();
  if (self->lingering) self->lingering->resume_watching(true);
  ensure_poller();
}

void io_threads::end_blocking() noexcept {
  if (auto* self = own_state()) --self->suspended;
}

// ---- timers and monitor

timer_id io_threads::start_timer(deadline at, work* item) {
  std::lock_guard lock(monitor_mutex_);
  const std::uint64_t id = next_timer_++;
  timer_index_.emplace(id, at.at());
  timers_.emplace(at.at(), timer{timer_id{id}, item});
  // While it is awake it makes a new plan.
  if (at.at().time_since_epoch().count() < sleeps_until_.load()) monitor_wake_.notify_one();
  return timer_id{id};
}

bool io_threads::cancel_timer(timer_id which) noexcept {
  std::lock_guard lock(monitor_mutex_);
  const auto found = timer_index_.find(static_cast<std::uint64_t>(which));
  if (found == timer_index_.end()) return false;
  auto [from, to] = timers_.equal_range(found->second);
  timer_index_.erase(found);
  for (auto at = from; at != to; ++at) {
    if (at->second.id == which) {
      timers_.erase(at);
      return true;
    }
  }
  return false;
}

void io_threads::watch_later(std::shared_ptr<deferred_io> item, std::chrono::milliseconds interval) noexcept {
  const auto due = next_look(clock::now(), interval);
  {
    std::lock_guard lock(watches_mutex_);
    watches_.push_back({std::move(item), interval, due});
  }
  if (due.time_since_epoch().count() >= sleeps_until_.load()) return;
  if (sleeps_until_.exchange(0) == 0) return;  // another thread wakes it
  { std::lock_guard lock(monitor_mutex_); }    // the monitor waits by now, or makes a new plan
  monitor_wake_.notify_one();
}

void io_threads::request_ticks() noexcept {
  if (ticking_.load(std::memory_order_relaxed) || ticking_.exchange(true)) return;
  { std::lock_guard lock(monitor_mutex_); }  // the monitor is either before its check or waiting
  monitor_wake_.notify_one();
}

io_threads::finding io_threads::inspect_threads() noexcept {
  finding found;
  work_list stuck;
  std::vector<std::shared_ptr<deferred_io>> corked;
  {
    std::lock_guard threads(threads_mutex_);
    for (thread_state* state : states_) found.held = state->batch.inspect(corked, stuck) || found.held;
  }
  if (stuck.head) {
    push_global(stuck);
    wake_one();
  }
  for (auto& item : corked) item->flush();
  found.taken = stuck.head || !corked.empty();
  return found;
}

void io_threads::inspect_watches(clock::time_point now) noexcept {
  std::vector<later_watch> watches;
  {
    std::lock_guard lock(watches_mutex_);
    watches.swap(watches_);
  }
  std::erase_if(watches, [&](later_watch& each) {
    if (each.due > now) return false;
    each.due = next_look(now, each.interval);
    return each.item->resume_watching(false);
  });
  if (watches.empty()) return;
  std::lock_guard lock(watches_mutex_);
  for (auto& each : watches) watches_.push_back(std::move(each));
}

clock::time_point io_threads::first_watch() noexcept {
  auto first = clock::time_point::max();
  std::lock_guard lock(watches_mutex_);
  for (const later_watch& each : watches_) first = std::min(first, each.due);
  return first;
}

void io_threads::monitor_main() noexcept {
  ::pthread_setname_np(::pthread_self(), "ferry-monitor");
  int quiet = 0;
  int in_vain = 0;
  clock::time_point last_timer{};
  auto next_timer = clock::time_point::max();
  std::unique_lock lock(monitor_mutex_);
  while (!monitor_stop_) {
    const auto now = clock::now();
    while (!timers_.empty() && timers_.begin()->first <= now) {
      const timer due = timers_.begin()->second;
      // What comes at intervals is about to be set again, on another thread. That one need not wake this one then.
      const auto at = timers_.begin()->first;
      next_timer = at + (at - std::exchange(last_timer, at));
      timers_.erase(timers_.begin());
      timer_index_.erase(static_cast<std::uint64_t>(due.id));
      lock.unlock();
      post_elsewhere(due.item);
      lock.lock();
    }
    if (first_watch() <= now) {
      lock.unlock();
      inspect_watches(now);
      lock.lock();
    }
    if (ticking_.load()) {
      lock.unlock();
      finding found = inspect_threads();
      quiet = found.held ? 0 : quiet + 1;
      if (quiet > quiet_ticks) {
        quiet = 0;
        ticking_.store(false);
        // Something may have been deferred since the inspection; its request_ticks() found ticking_ still set.
        found = inspect_threads();
        if (found.held) ticking_.store(true);
      }
      in_vain = found.taken ? 0 : std::min(in_vain + 1, 2 * looks_before_longer);
      lock.lock();
    }
    if (monitor_stop_) break;
    auto until = clock::time_point::max();
    if (ticking_.load()) until = quiet == 0 ? now + tick : next_look(now, pause_after(in_vain));
    if (!timers_.empty()) until = std::min(until, timers_.begin()->first);
    if (now < next_timer) until = std::min(until, next_timer);
    // Before first_watch(): watch_later() looks in the other order.
    sleeps_until_.store(until.time_since_epoch().count());
    if (const auto first = first_watch(); first < until) {
      until = first;
      sleeps_until_.store(until.time_since_epoch().count());
    }
    if (until == clock::time_point::max()) {
      monitor_wake_.wait(lock);
    } else {
      monitor_wake_.wait_until(lock, until);
    }
    sleeps_until_.store(0);
  }
}

}  // namespace ferry::inline v0::detail

namespace ferry::inline v0 {

std::shared_ptr<reactor> shared_reactor() {
  detail::check_not_forked();
  static std::mutex mutex;
  static auto* instance = new std::weak_ptr<reactor>;  // deliberately outlives static destruction
  std::lock_guard lock(mutex);
  if (auto existing = instance->lock()) return existing;
  static std::once_flag once;
  std::call_once(once, [] { ::pthread_atfork(nullptr, nullptr, detail::mark_forked_child); });
  auto core = std::make_shared<detail::io_threads>();
  core->start();
  // The threads share the core; the owners share this handle, whose destruction stops the threads.
  detail::io_threads* raw = core.get();
  std::shared_ptr<reactor> handle(raw, [core](reactor*) { core->stop(); });
  *instance = handle;
  return handle;
}

}  // namespace ferry::inline v0
