#include <ferry/rpc/worker_snapshot.hpp>

#include <chrono>
#include <ctime>
#include <string_view>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "json_text.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

std::string moment(std::chrono::system_clock::time_point at) {
  const auto in_day = std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count() % 1'000'000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(at)), in_day);
}

std::string json_worker(const worker_info& who) {
  return fmt::format(R"({{"id": {}, "name": {}}})", who.id().value, json_text(who.name()));
}

std::string json_time_left(deadline until, std::int64_t now_ns) {
  if (until.is_never()) return "null";
  return std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(until.at().time_since_epoch()).count() -
                        now_ns);
}

std::string json_of(const pending_call_info& call, std::int64_t now_ns) {
  return fmt::format(
      R"({{"call": "{:x}", "method": {}, "peer": {}, "phase": {}, "age_ns": {}, "time_left_ns": {}, "bytes": {}, "route": {}, "silence_ns": {}}})",
      call.id, json_text(call.method), json_worker(call.peer), json_text(to_string(call.phase)), call.age.count(),
      json_time_left(call.until, now_ns), call.bytes, json_text(call.route),
      call.silence ? std::to_string(call.silence->count()) : "null");
}

std::string json_of(const served_call_info& call, std::int64_t now_ns) {
  return fmt::format(
      R"({{"call": "{:x}", "method": {}, "caller": {}, "phase": {}, "age_ns": {}, "time_left_ns": {}, "bytes": {}, "one_way": {}, "unwanted": {}}})",
      call.id, json_text(call.method), json_worker(call.caller), json_text(to_string(call.phase)), call.age.count(),
      json_time_left(call.until, now_ns), call.bytes, call.one_way, call.unwanted);
}

std::string json_of(const std::vector<std::string>& names) {
  std::string out = "[";
  for (const std::string& each : names) out += (out.size() == 1 ? "" : ", ") + json_text(each);
  return out + ']';
}

std::string json_of(const pending_collective_info& one, std::int64_t now_ns) {
  return fmt::format(
      R"({{"operation": {}, "group": {}, "group_id": "{:x}", "channel": {}, "number": {}, "members": {}, "age_ns": {}, "time_left_ns": {}, "missing": {}}})",
      json_text(one.operation), json_text(one.group), one.group_id, one.channel, one.number, json_of(one.members),
      one.age.count(), json_time_left(one.until, now_ns), json_of(one.missing));
}

std::string json_of(const group_progress_info& group, std::int64_t) {
  return fmt::format(R"({{"group_id": "{:x}", "name": {}, "members": {}, "begun": {}}})", group.id,
                     json_text(group.name), json_of(group.members), group.begun);
}

std::string json_of(const peer_traffic& peer, std::int64_t) {
  return fmt::format(
      R"({{"peer": {}, "calls": {}, "errors": {}, "served": {}, "bytes_sent": {}, "bytes_received": {}}})",
      json_worker(peer.peer), peer.calls, peer.errors, peer.served, peer.bytes_sent, peer.bytes_received);
}

std::string json_of(const snapshot_route& route, std::int64_t) {
  return fmt::format(R"({{"peer": {}, "transport": {}, "route": {}}})", json_worker(route.peer),
                     json_text(route.transport), json_text(route.description));
}

std::string json_of(const recorded_event& event, std::int64_t) {
  std::string out = fmt::format(R"({{"n": {}, "steady_ns": {}, "event": {}, "peer": {})", event.number, event.steady_ns,
                                json_text(event.event), event.peer.value);
  if (event.call != 0) out += fmt::format(R"(, "call": "{:x}")", event.call);
  if (!event.method.empty()) out += R"(, "method": )" + json_text(event.method);
  if (event.bytes != 0) out += fmt::format(R"(, "bytes": {})", event.bytes);
  if (event.code != errc{}) out += fmt::format(R"(, "error": "{}")", errc_name(event.code));
  if (!event.text.empty()) out += R"(, "text": )" + json_text(event.text);
  out += '}';
  return out;
}

template <class Entries>
void append_list(std::string& out, std::string_view name, const Entries& entries, std::int64_t now_ns) {
  out += fmt::format(R"(, "{}": [)", name);
  std::string_view separator = "\n  ";
  for (const auto& each : entries) {
    out += separator;
    out += json_of(each, now_ns);
    separator = ",\n  ";
  }
  out += ']';
}

}  // namespace
}  // namespace detail

std::string to_json(const worker_snapshot& of) {
  std::string out = fmt::format(
      R"({{"ferry_flight_record": 1, "reason": {}, "worker": {}, "incarnation": "{:016x}", "process": {}, "time": "{}", "steady_ns": {})",
      detail::json_text(of.reason), detail::json_worker(of.worker), of.incarnation.value, of.process,
      detail::moment(of.time), of.steady_ns);
  detail::append_list(out, "pending_calls", of.pending_calls, of.steady_ns);
  detail::append_list(out, "served_calls", of.served_calls, of.steady_ns);
  detail::append_list(out, "pending_collectives", of.pending_collectives, of.steady_ns);
  detail::append_list(out, "groups", of.groups, of.steady_ns);
  detail::append_list(out, "traffic", of.traffic, of.steady_ns);
  detail::append_list(out, "routes", of.routes, of.steady_ns);
  out += R"(, "debug_info": {)";
  std::string_view separator = "\n  ";
  for (const auto& [name, value] : of.debug_info) {
    out += fmt::format("{}{}: {}", separator, detail::json_text(name), detail::json_text(value));
    separator = ",\n  ";
  }
  out += fmt::format(R"(}}, "events_so_far": {})", of.events_so_far);
  detail::append_list(out, "events", of.events, of.steady_ns);
  out += "}\n";
  return out;
}

}  // namespace ferry::inline v0
