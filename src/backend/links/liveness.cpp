#include "liveness.hpp"

#include <algorithm>

namespace ferry::inline v0::detail {
namespace {

constexpr int most_doublings = 7;       // of the interval between two queries in the log
constexpr int most_ticks_apart = 1024;  // between two attempts to reach an unreachable worker; a power of two

}  // namespace

liveness_actions assess(liveness& peer, clock::time_point now, const lease_rules& rules, bool opens_first) noexcept {
  if (peer.watched() && now - peer.heard > rules.lease) return {.declare_lost = true};
  liveness_actions actions{.send_heartbeat = peer.connected()};
  if (peer.watched()) peer.question = 0;
  if (peer.control || !peer.wants_control()) {
    peer.ticks_without_control = 0;
    return actions;
  }
  ++peer.ticks_without_control;
  if (!peer.watched()) {  // it is unreachable: increase the interval
    const int ticks = peer.ticks_without_control;
    actions.open_control = !peer.opening && ((ticks & (ticks - 1)) == 0 || ticks % most_ticks_apart == 0);
    if (peer.log_is_asked) return actions;
    if (peer.question != 0) {
      actions.read_log = now - peer.asked_at > rules.lease;
    } else {
      actions.ask_log = now - peer.unreached_since > rules.lease * (1 << std::min(peer.answers, most_doublings));
    }
    return actions;
  }
  const bool patient = !opens_first && !peer.suspect && !peer.awaited && !peer.guarded;
  actions.open_control = !peer.opening && (!patient || peer.ticks_without_control * rules.interval > rules.lease / 3);
  return actions;
}

bool was_stalled(clock::time_point due, clock::time_point now, const lease_rules& rules) noexcept {
  return now - due > rules.interval;
}

}  // namespace ferry::inline v0::detail
