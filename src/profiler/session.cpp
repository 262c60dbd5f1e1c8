#include <ferry/profiler/session.hpp>

#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/rpc/worker.hpp>

#include "../rpc/futures/thread_values.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "process_recordings.hpp"
#include "recorded_ranges.hpp"
#include "worker_name.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

ref_ptr<recording> recording_of(const worker_core& core, const profiler::options& how) {
  recording::properties with;
  with.wishes = {.shapes = how.shapes, .memory = how.memory, .device_times = how.device_times};
  with.remote = how.remote;
  with.events_per_thread = how.events_per_thread;
  with.node = core.agent_unchecked().self().id().value;
  auto made = recording::make(with);
  made->names().note_worker(with.node, core.agent_unchecked().self().name());
  return made;
}

}  // namespace
}  // namespace detail

namespace profiler {

struct session::state {
  explicit state(detail::worker_core& core, const options& how)
      : to(detail::recording_of(core, how)), worker(core.weak_from_this()), device_wait(how.device_wait) {
    const detail::recording_in_force* outer = current_value(detail::current_recording);
    if (outer) around = outer->to;
    parent = detail::event_within(detail::profiled_thread_here(), outer);
    own = current_values().with(detail::current_recording, detail::recording_in_force(to, parent, to->how().node));
    scope.emplace(own);
  }
  // What ends within a range is in force below the values of the range, which puts it back at its own end: then it is left to the
  // destructor, which is behind that. Until then it is closed, and does nothing.
  void leave() noexcept {
    if (detail::thread_values::in_force(detail::find_current_thread(), own)) scope.reset();
  }

  detail::ref_ptr<detail::recording> to;
  detail::ref_ptr<detail::recording> around;  // null: there is none
  std::uint64_t parent = 0;
  std::weak_ptr<detail::worker_core> worker;
  std::chrono::nanoseconds device_wait;
  context_values own;
  std::optional<context_values_scope> scope;
  bool finished = false;
};

session::session(const options& how) : state_(std::make_unique<state>(*detail::current_worker(), how)) {}
session::session(const worker& of, const options& how) : state_(std::make_unique<state>(detail::core_of(of), how)) {}

session::~session() {
  if (state_->finished) return;
  state_->scope.reset();
  (void)detail::caught([this] {
    profile found = state_->to->finish();
    if (!state_->around) return;
    detail::add_worker_names(found, state_->worker);
    state_->around->add_inner(found, state_->parent);
  });
}

profile session::finish() {
  if (std::exchange(state_->finished, true)) throw_error(errc::invalid_argument, "the session of a profiler is over");
  state_->leave();
  std::vector<detail::awaited_time> awaited;
  profile found = state_->to->finish(&awaited);
  detail::await_device_times(found, std::move(awaited), state_->worker, state_->device_wait);
  detail::add_worker_names(found, state_->worker);
  if (state_->around) state_->around->add_inner(found, state_->parent);
  return found;
}

// ---------------------------------------------------------------- ranges

struct range::state {
  detail::event_targets to;
  const range_description* what = nullptr;
  const range_description* what_in_whole = nullptr;
  std::uint64_t number = 0;
  std::uint64_t parent = 0;
  std::int32_t node = -1;
  int exceptions = std::uncaught_exceptions();
  std::int64_t began = 0;
  std::optional<context_value_scope> scope;
  detail::shown_range shown;
};

range::range(std::string_view name) {
  if (!detail::ranges_watched()) return;
  const detail::recording_in_force* here = current_value(detail::current_recording);
  detail::event_targets to = detail::event_targets::at(here);
  const detail::timeline* const on = detail::timeline_here();
  if (!to && !on) {
    detail::found_no_recording();
    return;
  }
  auto made = std::make_unique<state>();
  // A coroutine may go on, on another thread, before the range ends.
  if (on) made->shown.begin(*on, name, detail::find_current_thread().coroutine == nullptr);
  if (!to) {
    state_ = made.release();
    return;
  }
  if (to.own) made->what = &to.own->name_range(name, range_kind::user);
  if (to.whole) made->what_in_whole = &to.whole->names().name_range(name, range_kind::user);
  detail::profiled_thread& thread = detail::profiled_thread_here();
  made->number = detail::new_event_number(thread);
  made->parent = detail::event_within(thread, here);
  made->node = here ? here->node : -1;
  made->scope.emplace(detail::current_recording, detail::recording_in_force(to.own, made->number, made->node));
  to.begin();
  made->to = std::move(to);
  made->began = detail::ticks_now();
  state_ = made.release();
}

range::~range() {
  if (!state_) return;
  const std::unique_ptr<state> own(state_);
  own->shown.end();
  if (!own->to) return;
  detail::recorded_event event{.what = own->what, .number = own->number, .parent = own->parent, .began = own->began};
  event.ended = detail::ticks_now();
  event.node = own->node;
  event.failed = std::uncaught_exceptions() > own->exceptions;
  own->scope.reset();
  own->to.add(detail::profiled_thread_here(), std::move(event), own->what_in_whole);
}

}  // namespace profiler
}  // namespace ferry::inline v0
