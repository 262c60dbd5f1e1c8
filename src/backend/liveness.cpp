#include "liveness.hpp"

namespace ferry::inline v0::detail {

liveness_actions assess(liveness& peer, clock::time_point now, const lease_rules& rules, bool opens_first) noexcept {
  if (peer.watched() && now - peer.heard > rules.lease) return {.declare_lost = true};
  liveness_actions actions{.send_heartbeat = peer.connected()};
  if (peer.control || !peer.minded()) {
    peer.ticks_without_control = 0;
    return actions;
  }
  ++peer.ticks_without_control;
  if (!peer.watched()) {  // it cannot be reached: asked less and less often
    actions.open_control = !peer.opening && (peer.ticks_without_control & (peer.ticks_without_control - 1)) == 0;
    return actions;
  }
  const bool patient = !opens_first && !peer.suspect && !peer.awaited && !peer.guarded;
  actions.open_control = !peer.opening && (!patient || peer.ticks_without_control * rules.interval > rules.lease / 3);
  return actions;
}

bool overslept(clock::time_point due, clock::time_point now, const lease_rules& rules) noexcept {
  return now - due > rules.interval;
}

}  // namespace ferry::inline v0::detail
