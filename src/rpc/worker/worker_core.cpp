#include "worker_core.hpp"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ferry/base/log.hpp>
#include <ferry/rpc/call.hpp>

#include "../../base/peer_log.hpp"
#include "../../transport/reactor/io_threads.hpp"
#include "../pipeline/library_clients.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds handler_end_limit{5};  // for handlers still running when the worker has closed
// For other workers to leave a store served here, and the same for each of a group that has shut down together: they all have
// yet to read that, and may share a few processors.
constexpr std::chrono::milliseconds store_end_limit{5000};
constexpr std::chrono::milliseconds store_end_limit_each{50};

// The workers of the process in the order of their start; the last one is current.
struct worker_list {
  std::mutex mutex;
  std::vector<std::shared_ptr<worker_core>> workers;
};
worker_list& all_workers() {
  static auto* instance = new worker_list;  // outlives static destruction on purpose
  return *instance;
}

flight_owner recorded_as(const ferry::agent& agent) {
  std::string directory = agent.options().flight_directory;
  if (const char* value = std::getenv("FERRY_FLIGHT_DIRECTORY"); value && directory.empty()) directory = value;
  return {.directory = std::move(directory),
          .worker = agent.self().name(),
          .id = agent.self().id(),
          .incarnation = agent.incarnation(),
          .places = agent.options().num_worker_threads};
}

}  // namespace

worker_core::worker_core(std::shared_ptr<store> group_store, std::unique_ptr<ferry::agent> agent,
                         const worker_config& config, std::function<void()> on_left)
    : store_(std::move(group_store)),
      agent_(std::move(agent)),
      recorder_(static_cast<std::size_t>(agent_->options().flight_events), recorded_as(*agent_)),
      exit_timeout_(config.exit_timeout),
      served_(config.serve.everything() ? served_by_default() : config.serve),
      library_methods_(library_methods()),
      ignore_rref_leaks_(config.ignore_rref_leaks),
      on_left_(std::move(on_left)),
      pool_(std::make_shared<handler_pool>(
          agent_->reactor(), agent_->options().num_worker_threads, agent_->options().max_blocked_handlers,
          [](void* self) noexcept { static_cast<worker_core*>(self)->agent_->activity_changed(); }, this)),
      default_timeout_(agent_->options().rpc_timeout),
      interceptors_(make_library_clients(), config.interceptors) {
  for (std::size_t i = 0; i != library_clients().size(); ++i) {
    const library_client& each = library_clients()[i];
    if (each.watches_arrivals) interceptors_.set_watcher(*each.intercept(attached_.of_library(i)));
  }
  observers_of_calls_.add(flight_);
  observers_of_calls_.add(trace_);
  add_own_figures();
}

// The state of each part of the library; returns those that are interceptors.
std::vector<interceptor*> worker_core::make_library_clients() {
  std::vector<std::pair<int, interceptor*>> found;
  for (const library_client& each : library_clients()) {
    std::shared_ptr<worker_attachment> state;
    if (each.attach) state = each.attach(*this);
    if (each.intercept) found.emplace_back(each.rank, each.intercept(state.get()));
    attached_.add_of_library(std::move(state));
  }
  std::sort(found.begin(), found.end());
  std::vector<interceptor*> in_order;
  for (const auto& [rank, each] : found) in_order.push_back(each);
  return in_order;
}

std::unique_ptr<carried_handles> worker_core::carry(const call_target& to) {
  const std::vector<library_client>& clients = library_clients();
  for (std::size_t i = 0; i != clients.size(); ++i) {
    if (clients[i].carry) return clients[i].carry(*attached_.of_library(i), to);
  }
  throw_error(errc::not_serialisable, "this program is linked without what carries such values");
}

void worker_core::start() {
  check_methods();
  try {
    agent_->join(*this);
  } catch (...) {
    shut_down_.store(true);
    agent_->close();
    pool_->forget_owner();
    recorder_.remove_file();
    throw;
  }
  recorder_.set_identity(agent_->self().id(), agent_->incarnation());
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
  if (!context) return false;
  const incoming_call* call = context->call();
  return call ? call->worker().get() == this : context->executor().get() == this;
}

void worker_core::shutdown(shutdown_mode how, timeout limit) {
  if (runs_here()) {
    throw_error(errc::invalid_argument,
                to_string(agent_->self()) +
                    ": shutdown was called by one of the worker's own handlers or continuations, "
                    "which it would wait for; call it on another thread");
  }
  const blocking_scope blocking;
  std::unique_lock lock(shutdown_mutex_);
  if (progress_ == progress::running) {
    progress_ = progress::ending;
    if (requested_mode_ > how) limit = requested_limit_;  // a handler requested it earlier
    how = std::max(how, requested_mode_);
    lock.unlock();
    return end_and_tell(how, limit);
  }
  // A dynamic group has no member to wait for.
  if (progress_ == progress::serving) how = std::max(how, shutdown_mode::alone);
  if (how > requested_mode_) {
    requested_mode_ = how;
    requested_limit_ = limit;
    shutdown_changed_.notify_all();
    if (progress_ == progress::ending) {
      const auto group_store = store_;
      lock.unlock();
      stop_waiting(how);
      if (how == shutdown_mode::at_once && group_store) group_store->close();
      lock.lock();
    }
  }
  shutdown_changed_.wait(lock, [&] { return progress_ == progress::ended; });
}

void worker_core::ask_to_leave(timeout limit) {
  std::unique_lock lock(shutdown_mutex_);
  if (requested_mode_ >= shutdown_mode::alone) return;
  requested_mode_ = shutdown_mode::alone;
  requested_limit_ = limit;
  shutdown_changed_.notify_all();
  const bool ending = progress_ == progress::ending;
  lock.unlock();
  if (ending) stop_waiting(shutdown_mode::alone);
}

// Ends the waits of a running shutdown that `how` does not include.
void worker_core::stop_waiting(shutdown_mode how) noexcept {
  agent_->stop_leaving(how == shutdown_mode::at_once);
  attached_.stop_waiting(how == shutdown_mode::at_once);
}

void worker_core::serve_forever() {
  if (runs_here()) {
    throw_error(errc::invalid_argument, to_string(agent_->self()) +
                                            ": serve_forever was called by one of the worker's own handlers or "
                                            "continuations, which it would wait for; call it on another thread");
  }
  const blocking_scope blocking;
  std::unique_lock lock(shutdown_mutex_);
  if (progress_ != progress::running) {
    shutdown_changed_.wait(lock, [&] { return progress_ == progress::ended; });
    return;
  }
  const bool dynamic = agent_->members().dynamic();
  if (dynamic) {
    progress_ = progress::serving;
    shutdown_changed_.wait(lock, [&] { return requested_mode_ != shutdown_mode::together || fenced_.load(); });
  }
  progress_ = progress::ending;
  const auto how = dynamic ? std::max(requested_mode_, shutdown_mode::alone) : requested_mode_;
  const timeout limit = how == shutdown_mode::together ? timeout(no_timeout) : requested_limit_;
  lock.unlock();
  end_and_tell(how, limit);
}

void worker_core::end_and_tell(shutdown_mode how, timeout limit) {
  const auto tell = [&] {
    std::shared_ptr<store> closed;
    std::lock_guard lock(shutdown_mutex_);
    closed.swap(store_);
    progress_ = progress::ended;
    shutdown_changed_.notify_all();
  };
  try {
    end(how, limit);
  } catch (...) {
    recorder_.keep_file();  // it may say why
    tell();
    throw;
  }
  recorder_.remove_file();
  tell();
}

worker_core::shutdown_mode worker_core::effective_mode(shutdown_mode how) const {
  std::lock_guard lock(shutdown_mutex_);
  return std::max(how, requested_mode_);
}

// A concurrent shutdown(false) can interrupt the wait.
void worker_core::part(shutdown_mode how, timeout limit) {
  if (how == shutdown_mode::together) {
    try {
      return agent_->leave_together(deadline::after(limit));
    } catch (const error& e) {
      if (e.kind() != errc::shutting_down || effective_mode(how) != shutdown_mode::alone) throw;
    }
    std::lock_guard lock(shutdown_mutex_);
    limit = requested_limit_;
  }
  agent_->leave(deadline::after(limit.value_or(exit_timeout_)));
}

void worker_core::end(shutdown_mode how, timeout limit) {
  const bool graceful = how != shutdown_mode::at_once;
  std::size_t together = 0;
  std::exception_ptr failure;
  if (graceful) {
    try {
      if (how == shutdown_mode::together && store_->serves()) together = agent_->members().workers().size();
      part(how, limit);
      // An interrupted shutdown has given the others no time to drop their references.
      if (effective_mode(how) == shutdown_mode::together && !agent_->members().dynamic()) check_leaks();
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
  late_calls_.close();
  attached_.close();
  const bool idle = pool_->wait_idle(deadline::after(handler_end_limit));
  if (!idle) {
    log(log_level::warning, fmt::format("{} was shut down while handlers or continuations still run; they go on, but "
                                        "their calls fail",
                                        to_string(agent_->self())));
  }
  attached_.clear(idle);
  report_left_out_lines();
  drop_observers();
  await_records();
  drop_figures();
  pool_->forget_owner();
  if (graceful && !failure) {
    try {
      store_->drain(store_end_limit + together * store_end_limit_each);
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
  const std::uint64_t bytes = request.header.held_bytes();
  const std::uint64_t id = request.header.call_id;
  const bool one_way = (request.header.flags & frame_one_way) != 0;
  incoming_call* call = nullptr;
  try {
    const clock::time_point arrived = request.arrival();
    call = new incoming_call(shared_from_this(), channel, from.id(), std::move(request), arrived);
  } catch (const std::exception& e) {
    drop_request(*channel, from, one_way ? std::nullopt : std::optional(id), e);
    channel->handled(bytes);
    return request_done();
  }
  const method_entry* method = call->method();
  if (call->has_records() ||
      ((interceptors_.sees_all_requests() || interceptor_table::arrivals_watched()) && !(method && method->protocol))) {
    call->arrive();
  } else if (method && method->inline_handler) {
    call->run(call);
  } else {
    pool_->submit(call);
  }
}

// A request that could not be started: its caller gets an error, if one can be sent.
void worker_core::drop_request(reply_channel& channel, const worker_info& from, std::optional<std::uint64_t> id,
                               const std::exception& why) noexcept {
  try {
    log_about(from.id(), log_level::error, [&] {
      return fmt::format("{} dropped a request of {}: {}", to_string(agent_->self()), to_string(from), why.what());
    });
    if (!id) return;
    reply_writer reply(*this, channel, {from.id(), channel.sender_incarnation()}, *id);
    reply.be_failure(errc::out_of_memory, fmt::format("the callee dropped it: {}", why.what()));
    reply.send();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the caller's call times out
  }
}

void worker_core::on_member_end(worker_id id, incarnation_id incarnation) noexcept {
  attached_.on_member_end(id, incarnation);
}

void worker_core::on_group_quiet(deadline until, bool alone) {
  if (const shutdown_mode now = effective_mode(shutdown_mode::together); now != shutdown_mode::together)
    attached_.stop_waiting(now == shutdown_mode::at_once);
  attached_.on_group_quiet(until, alone);
}

std::uint64_t worker_core::loose_ends() const noexcept { return attached_.loose_ends(); }

// Call this after all references were dropped.
void worker_core::check_leaks() const {
  const std::vector<std::string> leaks = attached_.leaks();
  if (leaks.empty()) return;
  for (const std::string& each : leaks) {
    log(log_level::warning, fmt::format("{}: leaking reference: {}", to_string(agent_->self()), each));
  }
  if (ignore_rref_leaks_) return;
  throw_error(errc::reference_leaked, fmt::format("{} is leaking {} references to its objects: {}",
                                                  to_string(agent_->self()), leaks.size(), fmt::join(leaks, "; ")));
}

// An observer; it receives one event after the other, on handler threads.
struct worker_core::observer {
  member_observer function;
  std::deque<member_event> to_tell;  // guarded by events_mutex_, as the next one
  bool telling = false;
};

// Runs in the context of a call without a caller.
struct worker_core::event_report : work {
  std::shared_ptr<worker_core> worker;
  std::shared_ptr<observer> whom;

  void tell() noexcept {
    const context_ptr context(new call_context(worker));
    const context_scope scope(context);
    for (;;) {
      member_event event;
      {
        const std::lock_guard lock(worker->events_mutex_);
        if (whom->to_tell.empty() || worker->observers_dropped_) {
          whom->telling = false;
          return;
        }
        event = std::move(whom->to_tell.front());
        whom->to_tell.pop_front();
      }
      try {
        whom->function(event);
      } catch (...) {
        log(log_level::warning, fmt::format("{}: an observer of the group's workers threw {}",
                                            to_string(worker->agent_->self()), describe_exception(current_error())));
      }
    }
  }
};

// Call this with events_mutex_ held.
void worker_core::report(const std::shared_ptr<observer>& whom, const member_event& event) {
  whom->to_tell.push_back(event);
  if (whom->telling) return;
  auto item = std::make_unique<event_report>();
  item->worker = shared_from_this();
  item->whom = whom;
  item->run = [](work* self) noexcept {
    const std::unique_ptr<event_report> owned(static_cast<event_report*>(self));
    owned->tell();
  };
  pool_->submit(item.release());
  whom->telling = true;
}

void worker_core::add_observer(member_observer function, bool of_members, bool of_departed) {
  auto whom = std::make_shared<observer>();
  whom->function = std::move(function);
  const std::lock_guard lock(events_mutex_);
  if (observers_dropped_) return;
  for (const auto& [id, event] : losses_) report(whom, event);
  if (of_departed) {
    for (const auto& [id, event] : departures_) report(whom, event);
  }
  if (of_members) {
    for (const auto& [id, event] : members_) report(whom, event);
  }
  observers_.push_back(std::move(whom));
}

void worker_core::observe_members(member_observer function, bool and_departed) {
  add_observer(std::move(function), true, and_departed);
}

void worker_core::on_peer_lost(std::function<void(const worker_info& who, const std::string& reason)> function) {
  add_observer(
      [function = std::move(function)](const member_event& event) {
        if (event.what == member_event::kind::lost) function(event.who, event.reason);
      },
      false, false);
}

// An observer may own the worker.
void worker_core::drop_observers() noexcept {
  std::vector<std::shared_ptr<observer>> dropped;  // outlives the lock
  const std::lock_guard lock(events_mutex_);
  observers_dropped_ = true;
  dropped.swap(observers_);
}

void worker_core::on_link_event(const link_event& event) noexcept {
  flight_event what{};
  switch (event.what) {
    case link_event::kind::opened: what = flight_event::connection_opened; break;
    case link_event::kind::accepted: what = flight_event::connection_accepted; break;
    case link_event::kind::lost: what = flight_event::connection_lost; break;
    case link_event::kind::sent: what = flight_event::call_sent; break;
    case link_event::kind::late_reply: what = flight_event::late_reply; break;
  }
  if (event.what == link_event::kind::opened || event.what == link_event::kind::accepted)
    recorder_.add_peer(event.who.id(), event.who.name());
  recorder_.add(what, flight_time::now(), event.who.id(), event.call_id, event.method, event.bytes, {}, event.text);
  if (event.what != link_event::kind::sent) observers_of_calls_.tell_connection(event);
}

void worker_core::on_member_event(const member_event& event) noexcept {
  try {
    recorder_.add(flight_event::member, flight_time::now(), event.who.id(), 0, 0, 0, {},
                  event.reason.empty() ? std::string(to_string(event.what))
                                       : fmt::format("{}: {}", to_string(event.what), event.reason));
    if (event.what == member_event::kind::fenced) {
      const std::lock_guard lock(shutdown_mutex_);
      fenced_.store(true);
      shutdown_changed_.notify_all();
    }
    if (event.what == member_event::kind::lost) on_member_end(event.who.id(), event.incarnation);
    attached_.on_member_event(event);
    const std::lock_guard lock(events_mutex_);
    if (observers_dropped_) return;
    for (const auto& each : observers_) report(each, event);
    // A late report about a predecessor: its successor is already recorded, and stays.
    const auto known = members_.find(event.who.id());
    if (event.what != member_event::kind::joined && known != members_.end() &&
        known->second.incarnation != event.incarnation)
      return;
    switch (event.what) {
      case member_event::kind::joined:
        losses_.erase(event.who.id());
        departures_.erase(event.who.id());
        members_[event.who.id()] = event;
        break;
      case member_event::kind::lost:
        losses_[event.who.id()] = event;
        members_.erase(event.who.id());
        break;
      case member_event::kind::left:
        departures_[event.who.id()] = event;
        members_.erase(event.who.id());
        break;
      case member_event::kind::fenced: break;
    }
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: what happened to {} was not reported: {}", to_string(agent_->self()),
                                      to_string(event.who), e.what()));
  }
}

void worker_core::request_done() noexcept {
  if (requests_.fetch_sub(1) == 1) agent_->activity_changed();
}

const method_entry* running_method() noexcept {
  const incoming_call* call = thread_call();
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
    if (const incoming_call* call = context->call()) return call->worker();
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
