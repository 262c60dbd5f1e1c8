#include "call_observers.hpp"

#include <chrono>
#include <optional>
#include <string>

#include <ferry/base/log.hpp>

#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

std::optional<trace_event::kind> kind_of(call_moment what) noexcept {
  switch (what) {
    case call_moment::started: return trace_event::kind::call_begin;
    case call_moment::ended: return trace_event::kind::call_end;
    case call_moment::handler_begun:
    case call_moment::handler_begun_late: return trace_event::kind::handler_begin;
    case call_moment::handler_ended: return trace_event::kind::handler_end;
    default: return std::nullopt;
  }
}

}  // namespace

call_moments trace_observer::moments() const noexcept {
  return {call_moment::started, call_moment::ended, call_moment::handler_begun, call_moment::handler_begun_late,
          call_moment::handler_ended};
}

void trace_observer::on_call(const worker_core& worker, const call_event& event) noexcept {
  if (!event.entry) return;
  const auto kind = kind_of(event.what);
  if (!kind) return;
  const std::string peer = std::to_string(event.peer.value);
  trace({*kind, event.entry->name, worker.agent_unchecked().self().name(), peer, event.call,
         std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count()});
}

}  // namespace ferry::inline v0::detail
