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

// A worker is slow if its handlers of one method take this many times as long as those of the others, in the median, and at least this.
constexpr int slow_factor = 3;
constexpr std::chrono::milliseconds slow_at_least{1};
constexpr std::size_t enough_handlers = 5;

// Of so many calls it is looked up where they lead, and of so many whether they lead back.
constexpr std::size_t most_followed = 10'000;
constexpr std::size_t most_in_cycles = 1000;

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

using call_list = std::vector<const ferry::pending_call_info*>;

// The calls of a worker, the oldest first: they are in that order. Those that it has made while it served one of that age, which is of
// the same moment.
call_list made_within(const observed& worker, nanoseconds age) {
  call_list result;
  for (const ferry::pending_call_info& each : worker.snapshot->pending_calls) {
    if (each.age <= age) result.push_back(&each);
  }
  return result;
}
call_list all_of(const observed& worker) { return made_within(worker, nanoseconds::max()); }

// What the handler of a request waits for, as far as it is known.
enum class reason {
  nothing,  // it computes, or waits for something else than ferry: for a lock, perhaps
  nested,   // for one of the calls that it has made
  turn,     // it has not begun: for the handlers that run there, and so perhaps for their calls
};
reason reason_of(const ferry::served_call_info& served) {
  switch (served.phase) {
    case ferry::served_phase::queued:
    case ferry::served_phase::held: return reason::turn;
    case ferry::served_phase::running: return reason::nothing;
    case ferry::served_phase::waiting:
    case ferry::served_phase::later: return reason::nested;
  }
  return reason::nothing;
}

// Where the calls that begin with `call` lead: each next one is the oldest that the handler of the one before may have made.
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
    seen.emplace(from, call->id);
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
    const reason why = reason_of(*served);
    result.computes = why == reason::nothing;
    if (result.computes) return result;
    const call_list next = why == reason::turn ? all_of(*callee) : made_within(*callee, served->age);
    const auto fresh = std::find_if(next.begin(), next.end(), [&](const ferry::pending_call_info* each) {
      return !seen.contains({to, each->id});
    });
    if (fresh == next.end()) {
      result.circular = why == reason::turn && !next.empty();
      return result;
    }
    from = to;
    call = *fresh;
  }
}

// Calls that wait for each other.
struct cycle_of_calls {
  std::vector<const waiting_call*> calls;
  bool certain = true;  // no handler of them runs
};

// What the handler of a call waits for: the call that it has made, or perhaps any of those of its worker. A handler that runs may
// wait for a lock that another one there holds, which waits in a call.
struct blocked_by {
  std::optional<std::size_t> nested;
  const std::vector<std::size_t>* any_of = nullptr;  // the same for all handlers of a worker
  bool certain = true;
};
class wait_graph {
 public:
  wait_graph(const std::vector<waiting_call>& waiting, const group_index& of)
      : edges_(std::min(waiting.size(), most_in_cycles)) {
    std::map<std::pair<std::string, std::uint64_t>, std::size_t> places;
    for (std::size_t i = 0; i != edges_.size(); ++i) {
      const std::string& caller = waiting[i].caller->who.who.name();
      places.emplace(std::pair(caller, waiting[i].call->id), i);
      by_caller_[caller].push_back(i);
    }
    for (std::size_t i = 0; i != edges_.size(); ++i) {
      const waiting_call& each = waiting[i];
      const std::string& to = each.call->peer.name();
      const observed* const callee = of.find(to);
      if (!each.at_callee || !callee) continue;
      const reason why = reason_of(*each.at_callee);
      edges_[i].certain = why != reason::nothing;
      if (why != reason::nested) {
        edges_[i].any_of = made_by(to);
        continue;
      }
      const call_list made = made_within(*callee, each.at_callee->age);
      const auto found = made.empty() ? places.end() : places.find({to, made.front()->id});
      if (found != places.end() && found->second != i) edges_[i].nested = found->second;
    }
  }
  wait_graph(const wait_graph&) = delete;
  wait_graph& operator=(const wait_graph&) = delete;
  [[nodiscard]] const std::vector<blocked_by>& edges() const noexcept { return edges_; }
  /// Null: there is none.
  [[nodiscard]] const std::vector<std::size_t>* made_by(const std::string& worker) const {
    const auto found = by_caller_.find(worker);
    return found == by_caller_.end() ? nullptr : &found->second;
  }

 private:
  std::vector<blocked_by> edges_;  // by call, the oldest
  std::map<std::string, std::vector<std::size_t>> by_caller_;
};

// The shortest, by breadth-first searches; without calls: there is none. The calls of a worker are looked at once in each search.
cycle_of_calls shortest_cycle(const std::vector<waiting_call>& waiting, const wait_graph& graph, bool only_certain) {
  constexpr std::size_t none = ~std::size_t{0};
  const std::vector<blocked_by>& edges = graph.edges();
  cycle_of_calls best;
  for (std::size_t start = 0; start != edges.size(); ++start) {
    const auto* const with_start = graph.made_by(waiting[start].caller->who.who.name());
    std::vector<std::size_t> reached_from(edges.size(), none);
    std::set<const std::vector<std::size_t>*> looked_at;
    std::deque<std::size_t> next{start};
    bool found = false;
    while (!next.empty() && !found) {
      const std::size_t at = next.front();
      next.pop_front();
      const blocked_by& by = edges[at];
      if (only_certain && !by.certain) continue;
      const auto reach = [&](std::size_t to) {
        if (to == at || reached_from[to] != none) return;
        reached_from[to] = at;
        found = found || to == start;
        next.push_back(to);
      };
      if (by.nested) reach(*by.nested);
      if (!by.any_of) continue;
      if (by.any_of == with_start) reach(start);
      if (!found && looked_at.insert(by.any_of).second) std::for_each(by.any_of->begin(), by.any_of->end(), reach);
    }
    if (!found) continue;
    cycle_of_calls here;
    std::set<std::string> workers;
    const auto add = [&](std::size_t at) {
      here.calls.push_back(&waiting[at]);
      here.certain = here.certain && edges[at].certain;
      workers.insert(waiting[at].caller->who.who.name());
    };
    for (std::size_t at = reached_from[start]; at != start; at = reached_from[at]) add(at);
    add(start);
    std::reverse(here.calls.begin(), here.calls.end());
    if (workers.size() < 2) continue;  // calls to oneself are made in any order
    if (best.calls.empty() || here.calls.size() < best.calls.size()) best = std::move(here);
  }
  return best;
}

// How long the handlers took that have ended, by method.
std::map<std::string, std::vector<nanoseconds>> handler_times(const ferry::worker_snapshot& of) {
  std::map<std::pair<int, std::uint64_t>, std::int64_t> begun;
  std::map<std::string, std::vector<nanoseconds>> result;
  for (const ferry::recorded_event& each : of.events) {
    if (each.call == 0) continue;
    const std::pair key(each.peer.value, each.call);
    if (each.event == "request_received" || each.event == "handler_begun") {
      begun[key] = each.steady_ns;
    } else if (each.event == "request_answered" || each.event == "request_failed") {
      const auto found = begun.find(key);
      if (found == begun.end()) continue;
      result[each.method].emplace_back(each.steady_ns - found->second);
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

// Methods are compared one by one: workers serve different ones.
void add_slow_worker(std::vector<finding>& all, const group_index& of) {
  std::map<std::string, std::vector<std::pair<nanoseconds, std::string>>> by_method;
  for (const auto& [name, each] : of.workers()) {
    for (const auto& [method, times] : handler_times(*each->snapshot)) {
      if (const auto middle = median(times)) by_method[method].emplace_back(*middle, name);
    }
  }
  std::optional<finding> worst;
  nanoseconds most{};
  for (auto& [method, medians] : by_method) {
    if (medians.size() < 2) continue;
    std::sort(medians.begin(), medians.end());
    const auto& [slowest, name] = medians.back();
    const nanoseconds usual = medians[(medians.size() - 1) / 2].first;
    if (slowest < slow_at_least || slowest < slow_factor * usual || slowest < most) continue;
    most = slowest;
    worst = {finding::kind::slow_worker,
             fmt::format("'{}' takes {} at {} in the median, {} at the other workers that serve it.", method,
                         seconds(slowest), name, seconds(usual)),
             {name}};
  }
  if (worst) all.push_back(std::move(*worst));
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
             each.at_callee->phase != ferry::served_phase::running && first.call->age <= each.at_callee->age &&
             made_within(*first.caller, each.at_callee->age).front() == first.call;
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

void add_cycle(std::vector<finding>& all, const group_index& of, const std::vector<waiting_call>& waiting) {
  const wait_graph graph(waiting, of);
  cycle_of_calls found = shortest_cycle(waiting, graph, true);
  if (found.calls.empty()) found = shortest_cycle(waiting, graph, false);
  if (found.calls.empty()) return;
  std::string text = found.certain ? "These workers wait for each other, each for the next: "
                                   : "These workers wait for each other, each for the next, if what runs there waits "
                                     "for what their calls hold: ";
  std::vector<std::string> workers;
  for (std::size_t i = 0; i != found.calls.size(); ++i) {
    const waiting_call& each = *found.calls[i];
    workers.push_back(each.caller->who.who.name());
    text += fmt::format("{}{} for {} ('{}' for {}{})", i == 0 ? "" : ", ", workers.back(), each.call->peer.name(),
                        each.call->method, seconds(each.call->age),
                        each.at_callee ? ", there " + std::string(to_string(each.at_callee->phase)) : "");
  }
  all.push_back({finding::kind::cycle, text + ".", std::move(workers)});
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
  add_cycle(result.findings, index, result.waiting);
  add_bottleneck(result.findings, index, result.waiting, older_than);
  add_slow_worker(result.findings, index);
  return result;
}

}  // namespace ferry_top
