// The diagnostic views of an agent.

#include <algorithm>
#include <new>
#include <utility>

#include <ferry/base/log.hpp>

#include "native_agent.hpp"

namespace ferry::inline v0::detail {

std::vector<open_call> native_core::open_calls() const {
  std::vector<std::shared_ptr<outgoing_link>> links;
  {
    std::lock_guard lock(links_mutex_);
    for (const auto& [key, link] : outgoing_) links.push_back(link);
  }
  std::vector<open_call> result;
  for (const auto& link : links) link->list_calls(result);
  return result;
}

void native_core::visit_requests(const agent_inspection::request_visitor& visit) const {
  std::vector<std::shared_ptr<incoming_link>> links;
  {
    std::lock_guard lock(links_mutex_);
    for (const auto& [key, link] : incoming_) links.push_back(link);
  }
  for (const auto& link : links) link->visit_requests(visit);
}

std::vector<peer_traffic> native_core::traffic() const {
  std::map<std::int32_t, peer_traffic> sums;
  {
    std::lock_guard lock(links_mutex_);  // a link stays here until it has been moved there
    sums = past_traffic_;
    const auto add = [&](const auto& link) {
      peer_traffic& sum = sums[link.peer().who.id().value];
      sum.peer = link.peer().who;
      link.add_traffic(sum);
    };
    for (const auto& [key, link] : outgoing_) add(*link);
    for (const auto& [key, link] : incoming_) add(*link);
  }
  std::vector<peer_traffic> result;
  for (auto& [id, sum] : sums) result.push_back(std::move(sum));
  return result;
}

std::optional<std::chrono::nanoseconds> native_core::silence(worker_id of) const noexcept {
  const peer* place = peers_.at(of);
  if (!place || of == self_.id() || options_.heartbeat_interval.is_never()) return std::nullopt;
  std::lock_guard lock(place->mutex);
  if (!place->live.connected() && !place->live.suspect) return std::nullopt;
  const std::chrono::nanoseconds known = std::max(clock::now() - place->live.heard, clock::duration{});
  // A message arrived since the last tick, which has yet to record it.
  if (place->heard.load(std::memory_order_relaxed)) return std::min(known, options_.heartbeat_interval.duration());
  return known;
}

// Call with links_mutex_ held.
template <class Link>
void native_core::keep_traffic_of(const Link& closed) noexcept {
  try {
    peer_traffic& sum = past_traffic_[closed.peer().who.id().value];
    sum.peer = closed.peer().who;
    closed.add_traffic(sum);
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "out of memory: the traffic of a closed connection was not recorded");
  }
}

void native_core::keep_traffic(const outgoing_link& closed) noexcept { keep_traffic_of(closed); }
void native_core::keep_traffic(const incoming_link& closed) noexcept { keep_traffic_of(closed); }

void native_core::on_link_event(const link_event& event) noexcept {
  std::lock_guard lock(listener_mutex_);
  if (event_listener_) event_listener_->on_link_event(event);
}

}  // namespace ferry::inline v0::detail
