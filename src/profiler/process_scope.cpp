#include <ferry/profiler/process_scope.hpp>

#include <mutex>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/rpc/worker.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "linked_calls.hpp"
#include "process_recordings.hpp"
#include "worker_name.hpp"

namespace ferry::inline v0::profiler {

struct process_scope::state {
  state(detail::worker_core& core, const options& wanted)
      : how(wanted), self(core.agent_unchecked().self()), worker(core.weak_from_this()) {}
  ~state() {
    if (!to) return;
    detail::process_recordings::leave(*to);
    (void)detail::caught([this] { (void)to->finish(); });
  }
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  const options how;
  const worker_info self;
  const std::weak_ptr<detail::worker_core> worker;
  std::mutex mutex;                       // guards the next one
  detail::ref_ptr<detail::recording> to;  // null: it is not entered
};

process_scope::process_scope(const options& how) : state_(std::make_shared<state>(*detail::current_worker(), how)) {}
process_scope::process_scope(const worker& of, const options& how) : process_scope(detail::core_of(of), how) {}
process_scope::process_scope(detail::worker_core& of, const options& how) : state_(std::make_shared<state>(of, how)) {}
process_scope::~process_scope() = default;
process_scope::process_scope(process_scope&&) noexcept = default;
process_scope& process_scope::operator=(process_scope&&) noexcept = default;

void process_scope::enter() {
  if (!state_) throw_error(errc::no_state, "enter() on a process scope of the profiler that was moved from");
  const std::lock_guard lock(state_->mutex);
  if (state_->to) throw_error(errc::invalid_argument, "this process scope of the profiler is entered already");
  detail::recording::properties with;
  const options& how = state_->how;
  with.wishes = {.shapes = how.shapes, .memory = how.memory, .device_times = how.device_times};
  with.remote = how.remote;
  with.events_per_thread = how.events_per_thread;
  with.node = state_->self.id().value;
  state_->to = detail::process_recordings::enter(with);
  state_->to->names().note_worker(with.node, state_->self.name());
}

profile process_scope::exit() {
  if (!state_) throw_error(errc::no_state, "exit() on a process scope of the profiler that was moved from");
  detail::ref_ptr<detail::recording> which;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->to) throw_error(errc::invalid_argument, "this process scope of the profiler is not entered");
    which = std::move(state_->to);
  }
  detail::process_recordings::leave(*which);
  std::vector<detail::awaited_time> awaited;
  profile found = which->finish(&awaited);
  detail::await_device_times(found, std::move(awaited), state_->worker, state_->how.device_wait);
  detail::link_calls(found);
  detail::add_worker_names(found, state_->worker);
  return found;
}

}  // namespace ferry::inline v0::profiler
