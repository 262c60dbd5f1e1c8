#pragma once

#include <memory>

#include "links.hpp"
#include "peers.hpp"

namespace ferry::inline v0::detail {

// Where control frames to a worker go: over the control connection or, without one, where calls go, in either direction.
struct control_route {
  /// Call with the peer's mutex held.
  explicit control_route(const peer& to) : control(to.control), out(to.link), in(to.incoming) {}
  /// Call without it. `later`: also on a connection that is not open yet.
  template <class Make>
  void send(Make make, bool later = false) const {
    if (control) return control->send(make());
    if (out && out->usable()) return out->send_control(make());
    if (in) in->send_control(make());
    if (out && later) out->send_control(make(), true);
  }

  std::shared_ptr<control_link> control;
  std::shared_ptr<outgoing_link> out;
  std::shared_ptr<incoming_link> in;
};

}  // namespace ferry::inline v0::detail
