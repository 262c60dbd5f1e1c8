#include "diagnosis.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "group_index.hpp"
#include "rpc/diagnostics/collective_methods.hpp"
#include "wait_graph.hpp"

namespace ferry_top {
namespace {

using nanoseconds = std::chrono::nanoseconds;

// A worker is slow if its handlers of one method take this many times as long as those of the others, in the median, and at least this.
constexpr int slow_factor = 3;
constexpr std::chrono::milliseconds slow_at_least{1};
constexpr std::size_t enough_handlers = 5;

// Of so many calls it is looked up where they lead.
constexpr std::size_t most_followed = 10'000;
constexpr std::size_t most_collectives = 4;  // findings

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
                         seconds_text(slowest), name, seconds_text(usual)),
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
                   seconds_text(older_than), most->first),
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

void add_cycle(std::vector<finding>& all, const group_index& of, const std::vector<waiting_call>& waiting,
               nanoseconds older_than) {
  const wait_graph graph(waiting, of, older_than);
  cycle_of_waits found = graph.shortest_cycle(true);
  if (found.nodes.empty()) found = graph.shortest_cycle(false);
  if (found.nodes.empty()) return;
  std::string text = "These workers wait for each other, each for the next";
  if (found.running) text += ", if what runs there waits for what their calls hold";
  if (found.collectives) {
    text += found.running ? ", and" : ", if";
    text += " each waits for its collective or call before it calls what is missing";
  }
  text += ": ";
  std::vector<std::string> workers;
  for (const waiting_node* const each : found.nodes) {
    if (!workers.empty()) text += ", ";
    text += each->text;
    workers.push_back(each->worker);
  }
  all.push_back({finding::kind::cycle, text + ".", std::move(workers)});
}

// What keeps a worker from calling a collective, as far as it shows.
std::string occupation(const group_index& of, const std::string& name) {
  const observed& worker = *of.find(name);
  const call_list calls = all_calls_of(worker);
  const auto first = std::find_if(calls.begin(), calls.end(), [&](const ferry::pending_call_info* each) {
    return !ferry::detail::is_of_collective(each->method) || of.gather(name, *each);
  });
  const ferry::pending_collective_info* const begun = begun_within(worker, nanoseconds::max());
  if (begun && (first == calls.end() || begun->age > (*first)->age))
    return fmt::format("{} has had {} under way for {}", name, of.describe(*begun), seconds_text(begun->age));
  if (first != calls.end()) {
    const ferry::pending_call_info& call = **first;
    if (const waiting_collective* const gather = of.gather(name, call))
      return fmt::format("{} waits in {} for {}", name, gather->text, seconds_text(call.age));
    return fmt::format("the oldest call of {} is '{}' to {}, for {}", name, call.method, call.peer.name(),
                       seconds_text(call.age));
  }
  for (const ferry::served_call_info& each : worker.snapshot->served_calls) {
    if (!ferry::detail::is_of_collective(each.method))
      return fmt::format("{} has served '{}' for {}", name, each.method, seconds_text(each.age));
  }
  return name + " waits in no call and no collective: it computes, or waits for something else";
}

// Of each group the one that waits longest: those behind it wait for it.
void add_collectives(std::vector<finding>& all, const group_index& of, const std::vector<waiting_collective>& waiting) {
  std::set<std::uint64_t> groups;
  std::size_t told = 0;
  for (const waiting_collective& each : waiting) {
    if (each.missing.empty() && each.unknown.empty() && each.without.empty()) continue;
    if (each.what->group_id != 0 && !groups.insert(each.what->group_id).second) continue;
    if (++told > most_collectives) return;
    std::string text =
        fmt::format("{} waits at {} for {}", each.text, names_text(each.waiting), seconds_text(each.what->age));
    std::string_view separator = ": ";
    const auto add = [&](const std::vector<std::string>& names, std::string_view one, std::string_view many) {
      if (names.empty()) return;
      text += fmt::format("{}{} {}", separator, names_text(names), names.size() == 1 ? one : many);
      separator = ", ";
    };
    add(each.missing, "has not called it", "have not called it");
    add(each.unknown, "could not be asked", "could not be asked");
    add(each.without, "does not have the group any more", "do not have the group any more");
    if (!each.missing.empty() && of.find(each.missing.front())) text += "; " + occupation(of, each.missing.front());
    std::vector<std::string> workers = each.missing;
    if (workers.empty()) workers = each.unknown.empty() ? each.without : each.unknown;
    all.push_back({finding::kind::collective, text + ".", std::move(workers)});
  }
}

}  // namespace

std::string to_string(finding::kind what) {
  switch (what) {
    case finding::kind::oldest_call: return "oldest_call";
    case finding::kind::cycle: return "cycle";
    case finding::kind::collective: return "collective";
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
      if (call.age >= older_than && !ferry::detail::is_group_message(call.method))
        result.waiting.push_back({each, &call, index.served(name, call)});
    }
  }
  std::stable_sort(result.waiting.begin(), result.waiting.end(),
                   [](const waiting_call& a, const waiting_call& b) { return a.call->age > b.call->age; });
  put_outermost_first(result.waiting);
  std::copy_if(index.collectives().begin(), index.collectives().end(), std::back_inserter(result.collectives),
               [&](const waiting_collective& each) { return each.what->age >= older_than; });
  std::stable_sort(result.collectives.begin(), result.collectives.end(),
                   [](const auto& a, const auto& b) { return a.what->age > b.what->age; });
  add_missing(result.findings, of);
  add_oldest_call(result.findings, index, result.waiting);
  add_collectives(result.findings, index, result.collectives);
  add_cycle(result.findings, index, result.waiting, older_than);
  add_bottleneck(result.findings, index, result.waiting, older_than);
  add_slow_worker(result.findings, index);
  return result;
}

}  // namespace ferry_top
