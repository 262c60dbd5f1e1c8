#include "flight_observer.hpp"

#include <array>
#include <cstddef>
#include <optional>

#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::optional<flight_event> flight_event_of(call_moment what) noexcept {
  switch (what) {
    case call_moment::started: return flight_event::call_started;
    case call_moment::replied: return flight_event::call_replied;
    case call_moment::failed: return flight_event::call_failed;
    case call_moment::timed_out: return flight_event::call_timed_out;
    case call_moment::cancelled: return flight_event::call_cancelled;
    case call_moment::one_way_sent: return flight_event::one_way_sent;
    case call_moment::received: return flight_event::request_received;
    case call_moment::handler_begun_late: return flight_event::handler_begun;
    case call_moment::handler_suspended: return flight_event::handler_returned;
    case call_moment::answered: return flight_event::request_answered;
    case call_moment::refused: return flight_event::request_failed;
    case call_moment::done: return flight_event::request_done;
    case call_moment::handler_begun:  // as it was received
    case call_moment::not_sent:
    case call_moment::error_sent:
    case call_moment::ended:
    case call_moment::handler_ended: return std::nullopt;
  }
  return std::nullopt;
}

constexpr std::size_t moments_in_all = static_cast<std::size_t>(call_moment::done) + 1;
// A look-up costs less than the jump of the switch.
constexpr auto flight_events = [] {
  std::array<std::optional<flight_event>, moments_in_all> all;
  for (std::size_t i = 0; i != all.size(); ++i) all[i] = flight_event_of(static_cast<call_moment>(i));
  return all;
}();

}  // namespace

call_moments flight_observer::moments() const noexcept {
  return {
      call_moment::started,           call_moment::replied,      call_moment::failed,   call_moment::timed_out,
      call_moment::cancelled,         call_moment::one_way_sent, call_moment::received, call_moment::handler_begun_late,
      call_moment::handler_suspended, call_moment::answered,     call_moment::refused,  call_moment::done};
}

void flight_observer::on_call(const worker_core&, const call_event& event) noexcept {
  flight_recorder& recorder = worker_.recorder();
  if (const auto what = flight_events[static_cast<std::size_t>(event.what)]; what && recorder.on()) {
    const flight_time at = event.when();
    if (event.text.empty()) {
      recorder.add(*what, at, event.peer, event.call, event.method, event.bytes, event.code);
    } else {
      recorder.add(*what, at, event.peer, event.call, event.method, event.bytes, event.code, event.text);
    }
  }
  if (event.what == call_moment::timed_out) worker_.record_timeout();
}

}  // namespace ferry::inline v0::detail
