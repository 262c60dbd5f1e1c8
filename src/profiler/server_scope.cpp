#include <ferry/profiler/server_scope.hpp>

#include <algorithm>
#include <deque>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../rpc/pipeline/interceptor_table.hpp"
#include "profiler_client.hpp"
#include "worker_name.hpp"

namespace ferry::inline v0 {
namespace profiler {

struct server_scope::state {
  options how;
  std::mutex mutex;  // guards the rest
  bool entered = false;
  std::deque<detail::scope_request> requests;
  std::size_t events = 0;  // in these, and one more for each
  std::uint64_t lost = 0;  // in those that there was no place for
};

}  // namespace profiler

namespace detail {
namespace {

using scope_state = profiler::server_scope::state;

// The events that a scope keeps, as a multiple of those of a thread.
constexpr std::size_t rings_of_scope = 16;

struct scope_stack {
  std::mutex mutex;
  std::vector<std::shared_ptr<scope_state>> all;
};
scope_stack& scopes_of_process() {
  static auto* instance = new scope_stack;  // handlers may run while the process exits
  return *instance;
}

void leave_scope(const std::shared_ptr<scope_state>& which) noexcept {
  scope_stack& stack = scopes_of_process();
  const std::lock_guard lock(stack.mutex);
  const auto found = std::find(stack.all.begin(), stack.all.end(), which);
  if (found == stack.all.end()) return;
  stack.all.erase(found);
  interceptor_table::watch_arrivals(-1);
}

}  // namespace

entered_scopes server_scopes_now() {
  entered_scopes now;
  if (!interceptor_table::arrivals_watched()) return now;
  scope_stack& stack = scopes_of_process();
  const std::lock_guard lock(stack.mutex);
  now.all = stack.all;
  for (const auto& each : now.all) {
    now.wishes.shapes |= each->how.shapes;
    now.wishes.memory |= each->how.memory;
    now.wishes.device_times |= each->how.device_times;
    now.remote |= each->how.remote;
    now.events_per_thread = std::max(now.events_per_thread, each->how.events_per_thread);
  }
  return now;
}

void add_to_scope(scope_state& scope, const scope_request& request) noexcept {
  try {
    const std::lock_guard lock(scope.mutex);
    if (!scope.entered) return;
    scope.requests.push_back(request);
    scope.events += request.events.events.size() + 1;
    while ((scope.events - 1) / rings_of_scope > scope.how.events_per_thread && scope.requests.size() > 1) {
      const profiler::profile& oldest = scope.requests.front().events;
      scope.events -= oldest.events.size() + 1;
      scope.lost += oldest.events.size() + oldest.lost;
      scope.requests.pop_front();
    }
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "out of memory: the profile of a request was lost");
  }
}

namespace {
constexpr std::chrono::hours longest_device_wait{24};
}  // namespace

}  // namespace detail

namespace profiler {

server_scope::server_scope() : server_scope(options{}) {}
server_scope::server_scope(const options& how) : state_(std::make_shared<state>()) { state_->how = how; }
server_scope::server_scope(server_scope&&) noexcept = default;
server_scope& server_scope::operator=(server_scope&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
server_scope::~server_scope() {
  if (!state_) return;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->entered) return;
    state_->entered = false;
  }
  detail::leave_scope(state_);
}

void server_scope::enter() {
  if (!state_) throw_error(errc::no_state, "enter() on a server scope of the profiler that was moved from");
  detail::scope_stack& stack = detail::scopes_of_process();
  const std::lock_guard stack_lock(stack.mutex);
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->entered) throw_error(errc::invalid_argument, "this server scope of the profiler is entered already");
    stack.all.push_back(state_);
    state_->entered = true;
    state_->requests.clear();
    state_->events = 0;
    state_->lost = 0;
  }
  detail::interceptor_table::watch_arrivals(1);
}

std::vector<profile> server_scope::exit() {
  if (!state_) throw_error(errc::no_state, "exit() on a server scope of the profiler that was moved from");
  std::deque<detail::scope_request> requests;
  std::uint64_t lost = 0;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->entered) throw_error(errc::invalid_argument, "this server scope of the profiler is not entered");
    state_->entered = false;
    requests.swap(state_->requests);
    lost = state_->lost;
  }
  detail::leave_scope(state_);
  const auto until =
      clock::now() + std::min<std::chrono::nanoseconds>(state_->how.device_wait, detail::longest_device_wait);
  std::vector<profile> found;
  for (detail::scope_request& each : requests) {
    if (state_->how.device_times)
      detail::await_device_times(each.events, std::move(each.awaited), each.served_by, until - clock::now());
    detail::add_worker_names(each.events, each.served_by);
    found.push_back(std::move(each.events));
  }
  if (!found.empty()) found.front().lost += lost;
  return found;
}

profile merged(const std::vector<profile>& requests) {
  profile all;
  std::uint64_t next = 1;
  for (const profile& each : requests) {
    if (all.node < 0) {
      all.node = each.node;
      all.began_ns = each.began_ns;
      all.ended_ns = each.ended_ns;
    }
    all.began_ns = std::min(all.began_ns, each.began_ns);
    all.ended_ns = std::max(all.ended_ns, each.ended_ns);
    all.lost += each.lost;
    all.unfinished += each.unfinished;
    if (all.workers.size() < each.workers.size()) all.workers.resize(each.workers.size());
    for (std::size_t i = 0; i != each.workers.size(); ++i) {
      if (all.workers[i].empty()) all.workers[i] = each.workers[i];
    }
    for (const clock_offset& clock : each.clocks) {
      const auto known = std::find_if(all.clocks.begin(), all.clocks.end(),
                                      [&](const clock_offset& other) { return other.node == clock.node; });
      if (known == all.clocks.end()) {
        all.clocks.push_back(clock);
      } else {
        const std::uint64_t calls = known->calls + clock.calls;
        if (clock.uncertainty_ns < known->uncertainty_ns) *known = clock;
        known->calls = calls;
      }
    }
    std::unordered_map<std::uint64_t, std::uint64_t> numbers;
    for (const event& one : each.events) numbers.emplace(one.number, next++);
    next -= each.events.size();
    for (const event& one : each.events) {
      event& made = all.events.emplace_back(one);
      made.number = next++;  // of its own, also where a profile that came from elsewhere has a number twice
      const auto parent = numbers.find(one.parent);
      made.parent = parent == numbers.end() ? 0 : parent->second;
    }
  }
  std::sort(all.events.begin(), all.events.end(), [](const event& a, const event& b) {
    return a.began_ns != b.began_ns ? a.began_ns < b.began_ns : a.number < b.number;
  });
  return all;
}

}  // namespace profiler
}  // namespace ferry::inline v0
