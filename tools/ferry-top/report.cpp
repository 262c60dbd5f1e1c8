#include "report.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "rpc/diagnostics/json_text.hpp"

namespace ferry_top {
namespace {

using ferry::detail::json_text;
using seconds = std::chrono::duration<double>;

constexpr std::size_t most_calls_shown = 10;
constexpr std::size_t most_events_shown = 25;

struct totals {
  std::uint64_t calls = 0;
  std::uint64_t errors = 0;
  std::uint64_t served = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
};

totals totals_of(const ferry::worker_snapshot& of) {
  totals sum;
  for (const ferry::peer_traffic& each : of.traffic) {
    sum.calls += each.calls;
    sum.errors += each.errors;
    sum.served += each.served;
    sum.bytes_sent += each.bytes_sent;
    sum.bytes_received += each.bytes_received;
  }
  return sum;
}

// What a worker did a second between two looks at it, by its own clock.
struct rates {
  double calls = 0;
  double errors = 0;
  double served = 0;
  double bytes_sent = 0;
  double bytes_received = 0;
};

std::optional<rates> rates_of(const observation& before, const observed& now) {
  if (!now.snapshot) return std::nullopt;
  const auto found = std::find_if(before.workers.begin(), before.workers.end(), [&](const observed& each) {
    return each.snapshot && each.who.incarnation == now.who.incarnation;
  });
  if (found == before.workers.end()) return std::nullopt;
  const double passed = static_cast<double>(now.snapshot->steady_ns - found->snapshot->steady_ns) / 1e9;
  if (passed <= 0) return std::nullopt;
  const totals first = totals_of(*found->snapshot);
  const totals last = totals_of(*now.snapshot);
  const auto rate = [&](std::uint64_t a, std::uint64_t b) { return b > a ? static_cast<double>(b - a) / passed : 0.0; };
  return rates{rate(first.calls, last.calls), rate(first.errors, last.errors), rate(first.served, last.served),
               rate(first.bytes_sent, last.bytes_sent), rate(first.bytes_received, last.bytes_received)};
}

std::string figure(const ferry::worker_snapshot& of, std::string_view name) {
  const auto found =
      std::find_if(of.debug_info.begin(), of.debug_info.end(), [&](const auto& each) { return each.first == name; });
  return found == of.debug_info.end() ? std::string() : found->second;
}

std::string state_of(const observed& each) {
  if (!each.who.lost.empty()) return "lost";
  if (!each.snapshot) return "no answer";
  return each.who.leaving ? "leaving" : "ok";
}

std::string transports_of(const ferry::worker_snapshot& of) {
  std::set<std::string> all;
  for (const ferry::snapshot_route& each : of.routes) {
    if (!each.transport.empty()) all.insert(each.transport);
  }
  return fmt::format("{}", fmt::join(all, ","));
}

std::string short_number(double value) {
  constexpr std::string_view units = " kMGTP";
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 != units.size(); ++unit) value /= 1000;
  std::string text = unit == 0 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
  if (unit != 0) text += units[unit];
  return text;
}

std::string age_text(std::chrono::nanoseconds age) { return fmt::format("{:.2f}s", seconds(age).count()); }

// Columns as wide as their widest cell; the first is aligned left, the others right.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i != row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;  // figures of the program may have any text
    for (std::size_t i = 0; i != row.size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return out;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string json_names(const std::vector<std::string>& names) {
  std::string out = "[";
  for (const std::string& each : names) out += (out.size() == 1 ? "" : ", ") + json_text(each);
  return out + "]";
}

std::string json_findings(const diagnosis& found) {
  std::string out = "[";
  for (const finding& each : found.findings) {
    out += fmt::format(R"({}{{"kind": {}, "workers": {}, "text": {}}})", out.size() == 1 ? "\n  " : ",\n  ",
                       json_text(to_string(each.what)), json_names(each.workers), json_text(each.text));
  }
  return out + "]";
}

std::string utc(std::chrono::system_clock::time_point at) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(at)));
}

// "name": value, for figures that are numbers.
void add_figure(std::string& out, std::string_view name, const std::string& value) {
  if (!value.empty() && value.find_first_not_of("0123456789") == std::string::npos)
    out += fmt::format(R"(, "{}": {})", name, value);
}

std::string json_worker(const observation& before, const observed& each) {
  std::string out = fmt::format(R"({{"id": {}, "name": {}, "incarnation": "{:016x}", "state": {}, "host": {})",
                                each.who.who.id().value, json_text(each.who.who.name()), each.who.incarnation.value,
                                json_text(state_of(each)), json_text(each.who.host));
  if (!each.why.empty()) out += R"(, "why": )" + json_text(each.why);
  if (each.snapshot) {
    const ferry::worker_snapshot& now = *each.snapshot;
    const totals sum = totals_of(now);
    const auto oldest = [](const auto& calls) { return calls.empty() ? 0 : calls.front().age.count(); };
    out += fmt::format(
        R"(, "process": {}, "calls": {}, "errors": {}, "served": {}, "bytes_sent": {}, "bytes_received": {})",
        now.process, sum.calls, sum.errors, sum.served, sum.bytes_sent, sum.bytes_received);
    if (const auto rate = rates_of(before, each)) {
      out += fmt::format(
          R"(, "calls_per_s": {:.3f}, "errors_per_s": {:.3f}, "served_per_s": {:.3f}, "bytes_sent_per_s": {:.1f}, "bytes_received_per_s": {:.1f})",
          rate->calls, rate->errors, rate->served, rate->bytes_sent, rate->bytes_received);
    }
    out += fmt::format(R"(, "pending": {}, "oldest_pending_ns": {}, "serving": {}, "oldest_serving_ns": {})",
                       now.pending_calls.size(), oldest(now.pending_calls), now.served_calls.size(),
                       oldest(now.served_calls));
    add_figure(out, "threads", figure(now, "agent.thread_pool_size"));
    add_figure(out, "idle_threads", figure(now, "agent.num_idle_threads"));
    add_figure(out, "blocked_handlers", figure(now, "agent.blocked_handlers"));
    add_figure(out, "objects", figure(now, "num_owner_rrefs"));
    add_figure(out, "references", figure(now, "num_users"));
    out += R"(, "routes": [)";
    std::string_view separator;
    for (const ferry::snapshot_route& route : now.routes) {
      out += fmt::format(R"({}{{"peer": {}, "transport": {}, "route": {}}})", separator, json_text(route.peer.name()),
                         json_text(route.transport), json_text(route.description));
      separator = ", ";
    }
    out += ']';
  }
  return out + "}";
}

}  // namespace

std::string table(const observation& before, const observation& now, const diagnosis& found,
                  std::chrono::nanoseconds older_than) {
  std::string out =
      fmt::format("ferry-top: {}; {} UTC\n\n", now.kind,
                  fmt::format("{:%H:%M:%S}", fmt::gmtime(std::chrono::system_clock::to_time_t(now.time))));
  std::vector<std::vector<std::string>> rows{{"worker", "process", "state", "calls/s", "errors/s", "served/s", "in B/s",
                                              "out B/s", "pending", "oldest", "serving", "oldest", "idle", "objects",
                                              "refs", "over"}};
  for (const observed& each : now.workers) {
    std::vector<std::string> row{each.who.who.name()};
    if (!each.snapshot) {
      row.insert(row.end(), {"", state_of(each)});
      rows.push_back(std::move(row));
      continue;
    }
    const ferry::worker_snapshot& is = *each.snapshot;
    row.insert(row.end(), {std::to_string(is.process), state_of(each)});
    if (const auto rate = rates_of(before, each)) {
      for (const double value : {rate->calls, rate->errors, rate->served, rate->bytes_received, rate->bytes_sent})
        row.push_back(short_number(value));
    } else {
      row.insert(row.end(), 5, "-");
    }
    const auto oldest = [](const auto& calls) { return calls.empty() ? std::string() : age_text(calls.front().age); };
    row.insert(row.end(), {std::to_string(is.pending_calls.size()), oldest(is.pending_calls),
                           std::to_string(is.served_calls.size()), oldest(is.served_calls),
                           figure(is, "agent.num_idle_threads") + "/" + figure(is, "agent.thread_pool_size"),
                           figure(is, "num_owner_rrefs"), figure(is, "num_users"), transports_of(is)});
    rows.push_back(std::move(row));
  }
  out += aligned(rows);

  if (!found.waiting.empty()) {
    out += fmt::format("\ncalls that wait for {:.3g} s or longer: {}\n", seconds(older_than).count(),
                       found.waiting.size());
    for (std::size_t i = 0; i != std::min(found.waiting.size(), most_calls_shown); ++i) {
      const waiting_call& each = found.waiting[i];
      out += fmt::format("  {:>8}  {} -> {}  {}  ({}{})", age_text(each.call->age), each.caller->who.who.name(),
                         each.call->peer.name(), one_line(each.call->method), to_string(each.call->phase),
                         each.at_callee ? fmt::format("; there {}", to_string(each.at_callee->phase)) : std::string()) +
             '\n';
    }
  }
  if (!found.collectives.empty()) {
    out += fmt::format("\ncollectives that wait for {:.3g} s or longer: {}\n", seconds(older_than).count(),
                       found.collectives.size());
    for (std::size_t i = 0; i != std::min(found.collectives.size(), most_calls_shown); ++i) {
      const waiting_collective& each = found.collectives[i];
      out += one_line(fmt::format("  {:>8}  {}  at {} of {}{}", age_text(each.what->age), each.text,
                                  each.waiting.size(), each.members->size(),
                                  each.missing.empty() ? "" : "; not called by " + names_text(each.missing))) +
             '\n';
    }
  }
  if (!found.findings.empty()) {
    out += '\n';
    for (const finding& each : found.findings) out += one_line(each.text) + '\n';
  }
  return out;
}

std::string summary_json(const observation& before, const observation& now, const diagnosis& found) {
  std::string out =
      fmt::format(R"({{"ferry_top": 1, "group": {}, "time": "{}", "workers": [)", json_text(now.kind), utc(now.time));
  std::string_view separator = "\n  ";
  for (const observed& each : now.workers) {
    out += separator;
    out += json_worker(before, each);
    separator = ",\n  ";
  }
  out += R"(], "waiting": [)";
  separator = "\n  ";
  for (const waiting_call& each : found.waiting) {
    out += fmt::format(
        R"({}{{"call": "{:x}", "caller": {}, "callee": {}, "method": {}, "age_ns": {}, "at_caller": {}, "at_callee": {}}})",
        separator, each.call->id, json_text(each.caller->who.who.name()), json_text(each.call->peer.name()),
        json_text(each.call->method), each.call->age.count(), json_text(to_string(each.call->phase)),
        each.at_callee ? json_text(to_string(each.at_callee->phase)) : "null");
    separator = ",\n  ";
  }
  out += R"(], "collectives": [)";
  separator = "\n  ";
  for (const waiting_collective& each : found.collectives) {
    out += fmt::format(
        R"({}{{"operation": {}, "group": {}, "group_id": "{:x}", "channel": {}, "number": {}, "members": {}, "age_ns": {}, "waiting": {}, "missing": {}, "not_asked": {}, "without_group": {}}})",
        separator, json_text(each.what->operation), json_text(each.what->group), each.what->group_id,
        each.what->channel, each.what->number, json_names(*each.members), each.what->age.count(),
        json_names(each.waiting), json_names(each.missing), json_names(each.unknown), json_names(each.without));
    separator = ",\n  ";
  }
  out += R"(], "findings": )" + json_findings(found) + "}\n";
  return out;
}

std::string dump_json(const observation& of, const diagnosis& found) {
  std::string out =
      fmt::format(R"({{"ferry_flight_records": 1, "group": {}, "time": "{}", "findings": {}, "missing": [)",
                  json_text(of.kind), utc(of.time), json_findings(found));
  std::string_view separator = "\n  ";
  for (const observed& each : of.workers) {
    if (each.snapshot) continue;
    out += fmt::format(R"({}{{"worker": {{"id": {}, "name": {}}}, "why": {}}})", separator, each.who.who.id().value,
                       json_text(each.who.who.name()), json_text(each.why));
    separator = ",\n  ";
  }
  out += R"(], "clocks": [)";
  separator = "\n  ";
  for (const observed& each : of.workers) {
    if (!each.snapshot || !each.clock) continue;
    out += fmt::format(R"({}{{"worker": {}, "offset_ns": {}, "uncertainty_ns": {}}})", separator,
                       json_text(each.who.who.name()), each.clock->offset.count(), each.clock->uncertainty.count());
    separator = ",\n  ";
  }
  out += R"(], "workers": [)";
  separator = "\n";
  for (const observed& each : of.workers) {
    if (!each.snapshot) continue;
    ferry::worker_snapshot aligned_one = *each.snapshot;
    if (each.clock) {
      aligned_one.steady_ns -= each.clock->offset.count();
      for (ferry::recorded_event& event : aligned_one.events) event.steady_ns -= each.clock->offset.count();
      const auto move = [&](ferry::deadline& until) {
        if (!until.is_never()) until = ferry::deadline(until.at() - each.clock->offset);
      };
      for (auto& call : aligned_one.pending_calls) move(call.until);
      for (auto& call : aligned_one.served_calls) move(call.until);
      for (auto& one : aligned_one.pending_collectives) move(one.until);
    }
    out += separator;
    out += to_json(aligned_one);
    separator = ",";
  }
  out += "]}\n";
  return out;
}

namespace {

// Files have no deadlines.
template <class Call>
std::string without_deadline(const Call& call) {
  std::string text = to_string(call);
  constexpr std::string_view untold = ", no deadline";
  if (const auto at = text.rfind(untold); at != text.npos) text.replace(at, untold.size(), ", deadline not known");
  return text;
}

}  // namespace

std::string post_mortem_text(const observation& of) {
  std::string out;
  for (const observed& each : of.workers) {
    if (!out.empty()) out += '\n';
    if (!each.snapshot) {
      out += "ferry-top: " + one_line(each.why) + '\n';
      continue;
    }
    const ferry::worker_snapshot& last = *each.snapshot;
    out += fmt::format("{}, process {}: its last event was at {}, {} events in all\n", to_string(last.worker),
                       last.process, utc(last.time), last.events_so_far);
    for (const auto& call : last.served_calls) out += "  unanswered: " + one_line(without_deadline(call)) + '\n';
    for (const auto& call : last.pending_calls) out += "  unended: " + one_line(without_deadline(call)) + '\n';
    const std::size_t skipped = last.events.size() - std::min(last.events.size(), most_events_shown);
    for (auto event = last.events.begin() + static_cast<std::ptrdiff_t>(skipped); event != last.events.end(); ++event) {
      std::string line = fmt::format("  {:>14.6f} s  {:<20}",
                                     static_cast<double>(event->steady_ns - last.steady_ns) / 1e9, event->event);
      if (event->peer.value >= 0) line += fmt::format(" worker {}", event->peer.value);
      if (!event->method.empty()) line += " '" + event->method + "'";
      if (event->call != 0) line += fmt::format(" call {:x}", event->call);
      if (event->bytes != 0) line += fmt::format(" {} bytes", event->bytes);
      if (event->code != ferry::errc{}) line += fmt::format(" {}", ferry::errc_name(event->code));
      if (!event->text.empty()) line += " " + event->text;
      out += one_line(line) + '\n';
    }
  }
  return out;
}

std::string findings_text(const diagnosis& found, std::chrono::nanoseconds older_than) {
  std::string out;
  for (const finding& each : found.findings) out += one_line(each.text) + '\n';
  if (out.empty()) out = fmt::format("Nothing conspicuous: no call waits for {:.3g} s.\n", seconds(older_than).count());
  return out;
}

}  // namespace ferry_top
