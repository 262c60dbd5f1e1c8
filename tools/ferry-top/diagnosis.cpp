#include "diagnosis.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace ferry_top {
namespace {

using nanoseconds = std::chrono::nanoseconds;

// Snapshots of a group are not of one moment: ages that are compared may be wrong by this.
constexpr std::chrono::milliseconds between_snapshots{100};

// A worker is slow if its handlers take this many times as long as those of the others, in the median, and at least this.
constexpr int slow_factor = 3;
constexpr std::chrono::milliseconds slow_at_least{1};
constexpr std::size_t enough_handlers = 5;

// Of so many calls it is looked up where they lead.
constexpr std::size_t most_followed = 10'000;

std::string seconds(nanoseconds value) { return fmt::format("{:.3g} s", std::chrono::duration<double>(value).count()); }

// The workers that were asked, by name, and what each serves.
class group_index {
 public:
  explicit group_index(const observation& of) {
    for (const observed& each : of.workers) {
      if (!each.snapshot) continue;
      const observed*& place = by_name_[each.who.who.name()];
      if (!place || place->snapshot->time < each.snapshot->time) place = &each;
    }
    for (const auto& [name, each] : by_name_) {
      for (const ferry::served_call_info& call : each->snapshot->served_calls)
        served_.emplace(served_key(name, call.caller.name(), call.id), &call);
    }
  }
  [[nodiscard]] const std::map<std::string, const observed*>& workers() const noexcept { return by_name_; }
  /// Null: there is none of that name that was asked.
  [[nodiscard]] const observed* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  /// The call as its callee has it, or null.
  [[nodiscard]] const ferry::served_call_info* served(const std::string& caller,
                                                      const ferry::pending_call_info& call) const {
    const auto found = served_.find(served_key(call.peer.name(), caller, call.id));
    return found == served_.end() ? nullptr : found->second;
  }

 private:
  using served_key = std::tuple<std::string, std::string, std::uint64_t>;  // callee, caller, call
  std::map<std::string, const observed*> by_name_;
  std::map<served_key, const ferry::served_call_info*> served_;
};

// The calls of a worker, the oldest first: they are in that order.
const ferry::pending_call_info* oldest_within(const observed& worker, nanoseconds age) {
  const auto& all = worker.snapshot->pending_calls;
  const auto found = std::partition_point(
      all.begin(), all.end(), [&](const ferry::pending_call_info& each) { return each.age > age + between_snapshots; });
  return found == all.end() ? nullptr : &*found;
}

// Where the calls that begin with `call` lead: each next one is the oldest that its callee has made since the one before
// arrived there.
struct chain {
  std::vector<std::string> steps;  // texts
  std::string end;                 // the last worker
  bool computes = false;           // a handler runs there
  bool circular = false;
};

chain follow(const group_index& of, const std::string& caller, const ferry::pending_call_info& first) {
  chain result;
  std::set<std::pair<std::string, std::uint64_t>> seen;
  std::string from = caller;
  const ferry::pending_call_info* call = &first;
  for (;;) {
    const std::string& to = call->peer.name();
    result.end = to;
    std::string step = fmt::format("{} -> {}: '{}' for {}", from, to, call->method, seconds(call->age));
    if (!seen.emplace(from, call->id).second) {
      result.circular = true;
      return result;
    }
    const observed* const callee = of.find(to);
    if (!callee) {
      result.steps.push_back(step + ", " + std::string(to_string(call->phase)) + "; the callee could not be asked");
      return result;
    }
    const ferry::served_call_info* const served = of.served(from, *call);
    if (!served) {
      result.steps.push_back(step + ", " + std::string(to_string(call->phase)) + "; the callee does not have it");
      return result;
    }
    result.steps.push_back(step + ", at the callee " + std::string(to_string(served->phase)));
    result.computes = served->phase == ferry::served_phase::running;
    if (result.computes) return result;
    const ferry::pending_call_info* const next = oldest_within(*callee, served->age);
    if (!next) return result;
    from = to;
    call = next;
  }
}

struct edge {
  const ferry::pending_call_info* call = nullptr;  // the oldest
  std::string phase;                               // of its handler
};
using graph = std::map<std::string, std::map<std::string, edge>>;  // who waits for whom

graph who_waits_for_whom(const std::vector<waiting_call>& waiting) {
  graph result;
  for (const waiting_call& each : waiting) {  // the oldest first
    const std::string& from = each.caller->who.who.name();
    const std::string& to = each.call->peer.name();
    if (to == from) continue;
    edge& there = result[from][to];
    if (there.call) continue;
    there = {each.call, each.at_callee ? std::string(to_string(each.at_callee->phase)) : std::string()};
  }
  return result;
}

// By breadth-first searches; empty: there is none.
std::vector<std::string> shortest_cycle(const graph& waits) {
  std::vector<std::string> best;
  for (const auto& [start, ignored] : waits) {
    std::map<std::string, std::string> reached_from;
    std::deque<std::string> next{start};
    bool found = false;
    while (!next.empty() && !found) {
      const std::string at = next.front();
      next.pop_front();
      const auto out = waits.find(at);
      if (out == waits.end()) continue;
      for (const auto& [to, call] : out->second) {
        if (reached_from.contains(to)) continue;
        reached_from.emplace(to, at);
        if (to == start) {
          found = true;
          break;
        }
        next.push_back(to);
      }
    }
    if (!found) continue;
    std::vector<std::string> cycle;
    for (std::string at = reached_from.at(start); at != start; at = reached_from.at(at)) cycle.push_back(at);
    cycle.push_back(start);
    std::reverse(cycle.begin(), cycle.end());
    if (best.empty() || cycle.size() < best.size()) best = std::move(cycle);
  }
  return best;
}

// How long the handlers took that have ended.
std::vector<nanoseconds> handler_times(const ferry::worker_snapshot& of) {
  std::map<std::pair<int, std::uint64_t>, std::int64_t> begun;
  std::vector<nanoseconds> result;
  for (const ferry::recorded_event& each : of.events) {
    if (each.call == 0) continue;
    const std::pair key(each.peer.value, each.call);
    if (each.event == "request_received" || each.event == "handler_begun") {
      begun[key] = each.steady_ns;
    } else if (each.event == "request_answered" || each.event == "request_failed") {
      const auto found = begun.find(key);
      if (found == begun.end()) continue;
      result.emplace_back(each.steady_ns - found->second);
      begun.erase(found);
    }
  }
  return result;
}

std::optional<nanoseconds> median(std::vector<nanoseconds> of) {
  if (of.size() < enough_handlers) return std::nullopt;
  const auto middle = of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2);
  std::nth_element(of.begin(), middle, of.end());
  return *middle;
}

void add_slow_worker(std::vector<finding>& all, const group_index& of) {
  std::vector<std::pair<nanoseconds, std::string>> medians;
  for (const auto& [name, each] : of.workers()) {
    if (const auto middle = median(handler_times(*each->snapshot))) medians.emplace_back(*middle, name);
  }
  if (medians.size() < 2) return;
  std::sort(medians.begin(), medians.end());
  const auto [slowest, name] = medians.back();
  const nanoseconds usual = medians[(medians.size() - 1) / 2].first;
  if (slowest < slow_at_least || slowest < slow_factor * usual) return;
  all.push_back({finding::kind::slow_worker,
                 fmt::format("The handlers of {} take {} in the median, those of the other workers {}.", name,
                             seconds(slowest), seconds(usual)),
                 {name}});
}

void add_bottleneck(std::vector<finding>& all, const group_index& of, const std::vector<waiting_call>& waiting,
                    nanoseconds older_than) {
  const std::size_t count = std::min(waiting.size(), most_followed);
  std::map<std::string, std::size_t> ends;  // by worker: chains that end in a handler that runs there
  for (std::size_t i = 0; i != count; ++i) {
    const chain leads = follow(of, waiting[i].caller->who.who.name(), *waiting[i].call);
    if (leads.computes) ++ends[leads.end];
  }
  if (count < 2 || ends.empty()) return;
  const auto most =
      std::max_element(ends.begin(), ends.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (2 * most->second <= count) return;
  all.push_back(
      {finding::kind::bottleneck,
       fmt::format("{} of {} calls that wait for {} or longer wait in the end for a handler that runs at {}.",
                   most->second, count == waiting.size() ? std::to_string(count) : fmt::format("the {} oldest", count),
                   seconds(older_than), most->first),
       {most->first}});
}

void add_missing(std::vector<finding>& all, const observation& of) {
  for (const observed& each : of.workers) {
    const std::string name = each.who.who.name();
    if (each.snapshot || name.empty()) continue;  // without a name: a file
    if (!each.who.lost.empty()) {
      all.push_back({finding::kind::lost, fmt::format("{} is {}.", name, each.why), {name}});
    } else {
      all.push_back({finding::kind::not_answering, fmt::format("{} does not answer: {}.", name, each.why), {name}});
    }
  }
}

// The snapshots of two workers are of two moments: of a call and the one that its handler makes, either may look older. Brings to
// the front the call for which the handler runs that made the one there. In a circle there is none.
void put_outermost_first(std::vector<waiting_call>& waiting) {
  const std::vector<waiting_call> by_age = waiting;
  std::set<const ferry::pending_call_info*> met;
  while (!waiting.empty()) {
    const waiting_call& first = waiting.front();
    if (!met.insert(first.call).second) {
      waiting = by_age;
      return;
    }
    const std::string& maker = first.caller->who.who.name();
    const auto outer = std::find_if(waiting.begin() + 1, waiting.end(), [&](const waiting_call& each) {
      return each.at_callee && each.call->peer.name() == maker &&
             each.at_callee->phase != ferry::served_phase::running &&
             oldest_within(*first.caller, each.at_callee->age) == first.call;
    });
    if (outer == waiting.end()) return;
    std::rotate(waiting.begin(), outer, outer + 1);
  }
}

void add_oldest_call(std::vector<finding>& all, const group_index& of, const std::vector<waiting_call>& waiting) {
  if (waiting.empty()) return;
  const chain leads = follow(of, waiting.front().caller->who.who.name(), *waiting.front().call);
  std::string text = "The call that waits longest: ";
  for (std::size_t i = 0; i != leads.steps.size(); ++i) text += (i == 0 ? "" : "; this for ") + leads.steps[i];
  text += leads.circular ? "; and so in a circle." : ".";
  all.push_back({finding::kind::oldest_call, std::move(text), {leads.end}});
}

void add_cycle(std::vector<finding>& all, const std::vector<waiting_call>& waiting) {
  const graph waits = who_waits_for_whom(waiting);
  const auto cycle = shortest_cycle(waits);
  if (cycle.empty()) return;
  std::string text = "These workers wait for each other, each for the next: ";
  for (std::size_t i = 0; i != cycle.size(); ++i) {
    const std::string& to = cycle[(i + 1) % cycle.size()];
    const edge& call = waits.at(cycle[i]).at(to);
    text += fmt::format("{}{} for {} ('{}' for {}{})", i == 0 ? "" : ", ", cycle[i], to, call.call->method,
                        seconds(call.call->age), call.phase.empty() ? "" : ", there " + call.phase);
  }
  all.push_back({finding::kind::cycle, text + ".", cycle});
}

}  // namespace

std::string to_string(finding::kind what) {
  switch (what) {
    case finding::kind::oldest_call: return "oldest_call";
    case finding::kind::cycle: return "cycle";
    case finding::kind::bottleneck: return "bottleneck";
    case finding::kind::slow_worker: return "slow_worker";
    case finding::kind::not_answering: return "not_answering";
    case finding::kind::lost: return "lost";
  }
  return "unknown";
}

diagnosis diagnose(const observation& of, nanoseconds older_than) {
  diagnosis result;
  const group_index index(of);
  for (const auto& [name, each] : index.workers()) {
    for (const ferry::pending_call_info& call : each->snapshot->pending_calls) {
      if (call.age >= older_than) result.waiting.push_back({each, &call, index.served(name, call)});
    }
  }
  std::stable_sort(result.waiting.begin(), result.waiting.end(),
                   [](const waiting_call& a, const waiting_call& b) { return a.call->age > b.call->age; });
  put_outermost_first(result.waiting);
  add_missing(result.findings, of);
  add_oldest_call(result.findings, index, result.waiting);
  add_cycle(result.findings, result.waiting);
  add_bottleneck(result.findings, index, result.waiting, older_than);
  add_slow_worker(result.findings, index);
  return result;
}

}  // namespace ferry_top
