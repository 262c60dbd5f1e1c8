#include "flight_calls.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <string_view>
#include <utility>

namespace ferry::inline v0::detail {
namespace {

using flight_call_key = std::pair<worker_id, std::uint64_t>;

std::chrono::nanoseconds age_at(std::int64_t now_ns, const flight_entry& event) {
  return std::chrono::nanoseconds(std::max<std::int64_t>(now_ns - event.steady_ns, 0));
}

template <class Call>
void sort_by_age(std::vector<Call>& calls) {
  std::stable_sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) { return a.age > b.age; });
}

// A call as its caller saw it. The reply's event may come before that of the call, by number but not by time; an id is used
// again for a later call.
struct made_call {
  const flight_entry* started = nullptr;
  const flight_entry* ended = nullptr;
  bool sent = false;

  [[nodiscard]] bool is_open() const noexcept {
    return started && (!ended || (ended->number < started->number && ended->steady_ns < started->steady_ns));
  }
};

// A request with an id, as the callee saw it.
struct got_request {
  const flight_entry* received = nullptr;
  served_phase phase = served_phase::running;
};

// One-way requests of one method from one caller. They have no ids: an event of one of them means the first one in that
// phase.
class one_way_requests {
 public:
  [[nodiscard]] bool empty() const noexcept { return queued_.empty() && running_.empty() && later_.empty(); }
  void add(served_phase phase, const flight_entry& received) { in(phase).emplace(received.number, &received); }
  // False: there is none.
  bool change(served_phase from, served_phase to) {
    auto& source = in(from);
    if (source.empty()) return false;
    in(to).insert(source.extract(source.begin()));
    return true;
  }
  // Removes the first one of all; there must be one. Returns its phase.
  served_phase end() {
    served_phase first = served_phase::running;
    for (const served_phase each : {served_phase::queued, served_phase::later}) {
      if (in(each).empty()) continue;
      if (in(first).empty() || in(each).begin()->first < in(first).begin()->first) first = each;
    }
    in(first).erase(in(first).begin());
    return first;
  }
  template <class Function>
  void for_each(const Function& function) const {
    for (const auto& [number, received] : queued_) function({received, served_phase::queued});
    for (const auto& [number, received] : running_) function({received, served_phase::running});
    for (const auto& [number, received] : later_) function({received, served_phase::later});
  }

 private:
  using by_number = std::map<std::uint64_t, const flight_entry*>;  // of the event of their arrival
  by_number& in(served_phase phase) noexcept {
    return phase == served_phase::queued ? queued_ : phase == served_phase::running ? running_ : later_;
  }

  by_number queued_;
  by_number running_;
  by_number later_;
};

class request_history {
 public:
  explicit request_history(std::int64_t places) : places_(places) {}

  void add(const flight_entry& event) {
    switch (event.what) {
      case flight_event::request_received: {
        const bool queued = places_ > 0 && running_ >= places_;
        if (!queued) ++running_;
        const served_phase phase = queued ? served_phase::queued : served_phase::running;
        if (event.call == 0) {
          one_way_[{event.peer, event.method}].add(phase, event);
        } else {
          set(requests_[{event.peer, event.call}], {&event, phase});
        }
        break;
      }
      case flight_event::handler_begun: change(event, served_phase::queued, served_phase::running); break;
      case flight_event::handler_returned: change(event, served_phase::running, served_phase::later); break;
      case flight_event::request_answered:
      case flight_event::request_failed:
      case flight_event::request_done: end(event); break;
      default: break;
    }
  }

  template <class Function>
  void for_each(const Function& function) const {
    for (const auto& [key, request] : requests_) function(request);
    for (const auto& [key, several] : one_way_) several.for_each(function);
  }

 private:
  void set(got_request& place, const got_request& request) {
    if (place.received) leave(place.phase);
    place = request;
  }
  void leave(served_phase phase) noexcept {
    if (phase == served_phase::running) --running_;
  }
  void change(const flight_entry& event, served_phase from, served_phase to) {
    if (event.call != 0) {
      const auto at = requests_.find({event.peer, event.call});
      if (at == requests_.end() || at->second.phase == to) return;
      leave(at->second.phase);
      at->second.phase = to;
    } else {
      const auto at = one_way_.find({event.peer, event.method});
      if (at == one_way_.end() || !at->second.change(from, to)) return;
      leave(from);
    }
    if (to == served_phase::running) ++running_;
  }
  void end(const flight_entry& event) {
    if (event.call != 0) {
      const auto at = requests_.find({event.peer, event.call});
      if (at == requests_.end()) return;
      leave(at->second.phase);
      requests_.erase(at);
    } else if (const auto at = one_way_.find({event.peer, event.method}); at != one_way_.end()) {
      leave(at->second.end());
      if (at->second.empty()) one_way_.erase(at);
    }
  }

  std::int64_t places_;
  std::int64_t running_ = 0;
  std::map<flight_call_key, got_request> requests_;
  std::map<flight_call_key, one_way_requests> one_way_;  // by method
};

}  // namespace

std::vector<pending_call_info> open_calls_of(const std::vector<flight_entry>& events, const flight_setting& setting) {
  std::map<flight_call_key, made_call> calls;
  std::map<worker_id, std::uint64_t> opened;  // the number of the last connection's event
  for (const flight_entry& each : events) {
    switch (each.what) {
      case flight_event::call_started: {
        made_call& call = calls[{each.peer, each.call}];
        if (call.started) call.sent = false;
        call.started = &each;
        break;
      }
      case flight_event::call_sent: calls[{each.peer, each.call}].sent = true; break;
      case flight_event::call_replied:
      case flight_event::call_failed:
      case flight_event::call_timed_out:
      case flight_event::call_cancelled: calls[{each.peer, each.call}].ended = &each; break;
      case flight_event::connection_opened: opened[each.peer] = each.number; break;
      default: break;
    }
  }
  std::vector<pending_call_info> result;
  for (const auto& [key, call] : calls) {
    if (!call.is_open()) continue;
    const flight_entry& started = *call.started;
    call_phase phase = call_phase::waiting_for_reply;
    const auto connection = opened.find(started.peer);
    if (!call.sent && connection != opened.end() && connection->second > started.number) {
      phase = call_phase::queued;
    } else if (!call.sent && connection == opened.end() && setting.complete && started.peer != setting.self) {
      phase = call_phase::connecting;
    }
    result.push_back({.id = started.call,
                      .method = setting.method(started.method),
                      .peer = setting.peer(started.peer),
                      .phase = phase,
                      .age = age_at(setting.now_ns, started),
                      .bytes = started.bytes});
  }
  sort_by_age(result);
  return result;
}

std::vector<served_call_info> open_requests_of(const std::vector<flight_entry>& events, const flight_setting& setting) {
  request_history history(setting.places);
  std::map<worker_id, std::uint64_t> gone;  // the number of the event that says so
  for (const flight_entry& each : events) {
    history.add(each);
    if (each.what == flight_event::member && (each.text.starts_with("lost") || each.text.starts_with("left")))
      gone[each.peer] = each.number;
  }
  std::vector<served_call_info> result;
  history.for_each([&](const got_request& request) {
    const flight_entry& received = *request.received;
    const auto end = gone.find(received.peer);
    result.push_back({.id = received.call,
                      .method = setting.method(received.method),
                      .caller = setting.peer(received.peer),
                      .phase = request.phase,
                      .age = age_at(setting.now_ns, received),
                      .bytes = received.bytes,
                      .one_way = received.call == 0,
                      .unwanted = end != gone.end() && end->second > received.number});
  });
  sort_by_age(result);
  return result;
}

}  // namespace ferry::inline v0::detail
