#include "worker_core.hpp"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ferry/base/log.hpp>
#include <ferry/rpc/call.hpp>

#include "../transport/io_threads.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds handler_end_limit{5};  // for handlers that still run when the worker has closed
constexpr std::chrono::seconds store_end_limit{5};    // for other workers that still use a store served here

// The workers of the process in the order of their start; the last one is current.
struct worker_list {
  std::mutex mutex;
  std::vector<std::shared_ptr<worker_core>> workers;
};
worker_list& all_workers() {
  static auto* instance = new worker_list;  // outlives static destruction on purpose
  return *instance;
}

}  // namespace

worker_core::worker_core(std::shared_ptr<store> group_store, std::unique_ptr<ferry::agent> agent, timeout exit_timeout,
                         served_methods served, std::function<void()> on_left)
    : store_(std::move(group_store)),
      agent_(std::move(agent)),
      recorder_(static_cast<std::size_t>(agent_->options().flight_events)),
      exit_timeout_(exit_timeout),
      served_(served.everything() ? served_by_default() : std::move(served)),
      library_methods_(library_methods()),
      on_left_(std::move(on_left)),
      pool_(std::make_shared<handler_pool>(
          agent_->reactor(), agent_->options().num_worker_threads, agent_->options().max_blocked_handlers,
          [](void* self) noexcept { static_cast<worker_core*>(self)->agent_->activity_changed(); }, this)),
      default_timeout_(agent_->options().rpc_timeout) {
  add_own_figures();
}

void worker_core::start() {
  check_methods();
  try {
    agent_->join(*this);
  } catch (...) {
    shut_down_.store(true);
    agent_->close();
    pool_->forget_owner();
    throw;
  }
  auto& list = all_workers();
  std::lock_guard lock(list.mutex);
  list.workers.push_back(shared_from_this());
  set_root_context(context_ptr(new call_context(shared_from_this())));
}

ferry::agent& worker_core::agent() const {
  check_not_forked();
  if (shut_down_.load(std::memory_order_acquire)) {
    throw_error(errc::not_initialized, to_string(agent_->self()) + " has been shut down; call init_rpc again");
  }
  return *agent_;
}

bool worker_core::runs_here() const noexcept {
  const call_context* context = thread_context();
  return context && context->executor().get() == this;
}

void worker_core::shutdown(bool graceful, timeout limit) {
  if (runs_here()) {
    throw_error(errc::invalid_argument,
                to_string(agent_->self()) +
                    ": shutdown was called by one of the worker's own handlers or continuations, "
                    "which it would wait for; call it on another thread");
  }
  {
    const blocking_scope blocking;
    std::unique_lock lock(shutdown_mutex_);
    if (progress_ != progress::running) {
      if (!graceful && progress_ == progress::ending) {
        const auto group_store = store_;
        lock.unlock();
        agent_->stop_leaving();
        group_store->close();
        lock.lock();
      }
      shutdown_ended_.wait(lock, [&] { return progress_ == progress::ended; });
      return;
    }
    progress_ = progress::ending;
  }
  const auto tell = [&] {
    std::shared_ptr<store> closed;
    std::lock_guard lock(shutdown_mutex_);
    closed.swap(store_);
    progress_ = progress::ended;
    shutdown_ended_.notify_all();
  };
  try {
    end(graceful, limit);
  } catch (...) {
    tell();
    throw;
  }
  tell();
}

void worker_core::end(bool graceful, timeout limit) {
  std::exception_ptr failure;
  if (graceful) {
    try {
      agent_->leave_together(deadline::after(limit));
    } catch (...) {
      failure = std::current_exception();
    }
  }
  on_left_();
  shut_down_.store(true, std::memory_order_release);
  {
    auto& list = all_workers();
    std::lock_guard lock(list.mutex);
    std::erase_if(list.workers, [&](const auto& worker) { return worker.get() == this; });
    set_root_context(list.workers.empty() ? context_ptr() : context_ptr(new call_context(list.workers.back())));
  }
  agent_->close();
  drop_attached();
  if (!pool_->wait_idle(deadline::after(handler_end_limit))) {
    log(log_level::warning, fmt::format("{} was shut down while handlers or continuations still run; they go on, but "
                                        "their calls fail",
                                        to_string(agent_->self())));
  }
  drop_observers();
  await_records();
  drop_figures();
  pool_->forget_owner();
  if (graceful && !failure) {
    try {
      store_->drain(store_end_limit);
    } catch (const std::exception& e) {
      log(log_level::info, fmt::format("{}: while the others left the store: {}", to_string(agent_->self()), e.what()));
    }
  }
  store_->close();
  if (failure) std::rethrow_exception(failure);
}

void worker_core::on_request(const std::shared_ptr<reply_channel>& channel, const worker_info& from,
                             inbound_message&& request) noexcept {
  requests_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t bytes = request.header.message_bytes();
  try {
    auto call = std::make_unique<served_call>(shared_from_this(), channel, from.id(), std::move(request), clock::now());
    const method_entry* method = call->method();
    if (method && method->inline_handler) {
      served_call* released = call.release();
      released->run(released);
    } else {
      pool_->submit(call.release());
    }
  } catch (const std::exception& e) {
    channel->handled(bytes);
    log(log_level::error,
        fmt::format("{} dropped a request of {}: {}", to_string(agent_->self()), to_string(from), e.what()));
    request_done();
  }
}

std::shared_ptr<void> worker_core::attach(const void* key, std::shared_ptr<void> (*make)()) {
  std::lock_guard lock(attached_mutex_);
  if (attached_dropped_) {
    throw_error(errc::not_initialized, to_string(agent_->self()) + " has been shut down; call init_rpc again");
  }
  for (const auto& [known, what] : attached_) {
    if (known == key) return what;
  }
  return attached_.emplace_back(key, make()).second;
}

void worker_core::drop_attached() noexcept {
  std::vector<std::pair<const void*, std::shared_ptr<void>>> dropped;  // outside the lock: their ends may run code
  std::lock_guard lock(attached_mutex_);
  attached_dropped_ = true;
  dropped.swap(attached_);
}

// One observer is told of one loss, with the context of a call that nobody made.
struct worker_core::loss_report : work {
  std::shared_ptr<worker_core> worker;
  std::shared_ptr<const loss_observer> observer;
  member_event event;
};

// With losses_mutex_ held, so that each observer hears of everything once and in order of its posting.
void worker_core::report(const std::shared_ptr<const loss_observer>& observer, const member_event& event) {
  auto item = std::make_unique<loss_report>();
  item->worker = shared_from_this();
  item->observer = observer;
  item->event = event;
  item->run = [](work* self) noexcept {
    const std::unique_ptr<loss_report> owned(static_cast<loss_report*>(self));
    const context_ptr context(new call_context(owned->worker));
    const context_scope scope(context);
    try {
      (*owned->observer)(owned->event.who, owned->event.reason);
    } catch (...) {
      log(log_level::warning,
          fmt::format("{}: an observer of lost workers threw {}", to_string(owned->worker->agent_->self()),
                      describe_exception(std::current_exception())));
    }
  };
  pool_->submit(item.release());
}

void worker_core::on_peer_lost(loss_observer observer) {
  auto shared = std::make_shared<const loss_observer>(std::move(observer));
  const std::lock_guard lock(losses_mutex_);
  if (observers_dropped_) return;
  for (const member_event& event : losses_) report(shared, event);
  loss_observers_.push_back(std::move(shared));
}

// An observer may own the worker.
void worker_core::drop_observers() noexcept {
  std::vector<std::shared_ptr<const loss_observer>> dropped;  // outlives the lock
  const std::lock_guard lock(losses_mutex_);
  observers_dropped_ = true;
  dropped.swap(loss_observers_);
}

void worker_core::on_link_event(const link_event& event) noexcept {
  const auto what = event.what == link_event::kind::opened     ? flight_event::connection_opened
                    : event.what == link_event::kind::accepted ? flight_event::connection_accepted
                    : event.what == link_event::kind::sent     ? flight_event::call_sent
                                                               : flight_event::connection_lost;
  recorder_.add(what, flight_time::now(), event.who.id(), event.call_id, 0, 0, {}, event.text);
}

void worker_core::on_member_event(const member_event& event) noexcept {
  try {
    recorder_.add(flight_event::member, flight_time::now(), event.who.id(), 0, 0, 0, {},
                  fmt::format("{}: {}", to_string(event.what), event.reason));
    if (event.what == member_event::kind::fenced) fenced_.store(true);
    if (event.what != member_event::kind::lost) return;
    const std::lock_guard lock(losses_mutex_);
    if (observers_dropped_) return;
    for (const auto& observer : loss_observers_) report(observer, event);
    losses_.push_back(event);
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: the loss of {} was not reported: {}", to_string(agent_->self()),
                                      to_string(event.who), e.what()));
  }
}

void worker_core::request_done() noexcept {
  if (requests_.fetch_sub(1) == 1) agent_->activity_changed();
}

const method_entry* running_method() noexcept {
  const auto* call = dynamic_cast<const served_call*>(thread_context());
  return call ? call->method() : nullptr;
}

std::vector<std::shared_ptr<worker_core>> running_workers() {
  auto& list = all_workers();
  std::lock_guard lock(list.mutex);
  return list.workers;
}

std::shared_ptr<worker_core> current_worker() {
  check_not_forked();
  if (call_context* context = thread_context()) {
    if (auto* core = dynamic_cast<worker_core*>(context->executor().get())) return core->shared_from_this();
  }
  auto& list = all_workers();
  std::lock_guard lock(list.mutex);
  if (list.workers.empty()) {
    throw_error(errc::not_initialized,
                "RPC has not been initialised in this process, or has been shut down; call init_rpc first");
  }
  return list.workers.back();
}

}  // namespace ferry::inline v0::detail
