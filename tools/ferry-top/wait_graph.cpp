#include "wait_graph.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace ferry_top {
namespace {

using nanoseconds = std::chrono::nanoseconds;

constexpr std::size_t most_nodes = 1000;

// "in barrier of worker0, worker1, which worker1 has not called"
std::string waits_for_missing(const waiting_collective& of) {
  return fmt::format("in {}, which {} {} not called", of.text, names_text(of.missing),
                     of.missing.size() == 1 ? "has" : "have");
}

}  // namespace

chain follow(const group_index& of, const std::string& caller, const ferry::pending_call_info& first) {
  chain result;
  std::set<std::pair<std::string, std::uint64_t>> seen;
  std::string from = caller;
  const ferry::pending_call_info* call = &first;
  for (;;) {
    const std::string& to = call->peer.name();
    result.end = to;
    std::string step = fmt::format("{} -> {}: '{}' for {}", from, to, call->method, seconds_text(call->age));
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
    if (const waiting_collective* const gather = of.gather(from, *call); gather && !gather->missing.empty()) {
      result.steps.push_back(step + ", " + waits_for_missing(*gather));
      result.end = gather->missing.front();
      return result;
    }
    const reason why = reason_of(*served);
    const call_list next = why == reason::turn ? all_calls_of(*callee) : made_within(*callee, served->age);
    const ferry::pending_collective_info* const within = begun_within(*callee, served->age);
    const bool in_collective = why == reason::nested && within && (next.empty() || within->age > next.front()->age);
    const waiting_collective* const of_group = in_collective ? of.collective(*within) : nullptr;
    if (of_group && !of_group->missing.empty()) {
      result.steps.push_back(step + ", at the callee waiting " + waits_for_missing(*of_group));
      result.end = of_group->missing.front();
      return result;
    }
    result.steps.push_back(step + ", at the callee " + std::string(to_string(served->phase)));
    result.computes = why == reason::nothing;
    if (result.computes) return result;
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

wait_graph::wait_graph(const std::vector<waiting_call>& waiting, const group_index& of, nanoseconds older_than)
    : of_(of) {
  call_nodes_ = std::min(waiting.size(), most_nodes);
  for (std::size_t i = 0; i != call_nodes_; ++i) add_call(waiting[i]);
  std::vector<const waiting_collective*> of_nodes;  // behind those of the calls
  for (const auto& [name, each] : of.workers()) {
    for (const ferry::pending_collective_info& one : each->snapshot->pending_collectives) {
      const waiting_collective* const all = of.collective(one);
      if (!all || all->missing.empty() || one.age < older_than || nodes_.size() >= 2 * most_nodes) continue;
      add_collective(name, one, *all);
      of_nodes.push_back(all);
    }
  }
  for (auto& [name, list] : by_worker_) {
    std::copy_if(list.begin(), list.end(), std::back_inserter(calls_of_[name]),
                 [this](std::size_t each) { return each < call_nodes_; });
    std::stable_sort(list.begin(), list.end(),
                     [this](std::size_t a, std::size_t b) { return nodes_[a].age > nodes_[b].age; });
  }
  edges_.resize(nodes_.size());
  for (std::size_t i = 0; i != call_nodes_; ++i) connect_call(i, waiting[i]);
  for (std::size_t i = call_nodes_; i != nodes_.size(); ++i) connect_missing(i, *of_nodes[i - call_nodes_]);
}

void wait_graph::add_call(const waiting_call& call) {
  const std::string& caller = call.caller->who.who.name();
  calls_.emplace(call_key(caller, call.call->id), nodes_.size());
  by_worker_[caller].push_back(nodes_.size());
  if (const waiting_collective* const gather = of_.gather(caller, *call.call); gather && !gather->missing.empty()) {
    nodes_.push_back({caller,
                      fmt::format("{} for {} ({} for {})", caller, names_text(gather->missing), gather->text,
                                  seconds_text(call.call->age)),
                      call.call->age});
    return;
  }
  nodes_.push_back({caller,
                    fmt::format("{} for {} ('{}' for {}{})", caller, call.call->peer.name(), call.call->method,
                                seconds_text(call.call->age),
                                call.at_callee ? ", there " + std::string(to_string(call.at_callee->phase)) : ""),
                    call.call->age});
}

void wait_graph::add_collective(const std::string& member, const ferry::pending_collective_info& what,
                                const waiting_collective& all) {
  collectives_.emplace(member_key(member, &what), nodes_.size());
  by_worker_[member].push_back(nodes_.size());
  nodes_.push_back({member,
                    fmt::format("{} for {} ({} for {})", member, names_text(all.missing), of_.describe(what),
                                seconds_text(what.age)),
                    what.age});
}

std::optional<std::size_t> wait_graph::first_made(const std::string& worker, nanoseconds within) const {
  const observed* const maker = of_.find(worker);
  if (!maker) return std::nullopt;
  const call_list made = made_within(*maker, within);
  const ferry::pending_collective_info* const begun = begun_within(*maker, within);
  if (begun && (made.empty() || begun->age > made.front()->age)) {
    const auto found = collectives_.find({worker, begun});
    return found == collectives_.end() ? std::nullopt : std::optional(found->second);
  }
  const auto found = made.empty() ? calls_.end() : calls_.find({worker, made.front()->id});
  return found == calls_.end() ? std::nullopt : std::optional(found->second);
}

void wait_graph::connect_call(std::size_t node, const waiting_call& call) {
  const std::string& to = call.call->peer.name();
  if (!call.at_callee || !of_.find(to)) return;
  if (const waiting_collective* const gather = of_.gather(nodes_[node].worker, *call.call))
    return connect_missing(node, *gather);
  blocked_by& by = edges_[node];
  const reason why = reason_of(*call.at_callee);
  by.running = why == reason::nothing;
  if (why == reason::nested) {
    by.one = first_made(to, call.at_callee->age);
    if (by.one == node) by.one.reset();
  } else if (const auto made = calls_of_.find(to); made != calls_of_.end()) {
    by.any_of.push_back(&made->second);
  }
}

void wait_graph::connect_missing(std::size_t node, const waiting_collective& of) {
  blocked_by& by = edges_[node];
  by.collective = true;
  for (const std::string& each : of.missing) {
    if (const auto made = by_worker_.find(each); made != by_worker_.end()) by.any_of.push_back(&made->second);
  }
}

// By breadth-first searches. What a worker waits in is looked at once in each.
cycle_of_waits wait_graph::shortest_cycle(bool only_certain) const {
  constexpr std::size_t none = ~std::size_t{0};
  cycle_of_waits best;
  for (std::size_t start = 0; start != edges_.size(); ++start) {
    const std::string& of_start = nodes_[start].worker;
    const node_list* const all_with_start = &by_worker_.at(of_start);
    const node_list* const calls_with_start = start < call_nodes_ ? &calls_of_.at(of_start) : nullptr;
    std::vector<std::size_t> reached_from(edges_.size(), none);
    std::set<const node_list*> looked_at;
    std::deque<std::size_t> next{start};
    bool found = false;
    while (!next.empty() && !found) {
      const std::size_t at = next.front();
      next.pop_front();
      const blocked_by& by = edges_[at];
      if (only_certain && (by.running || by.collective)) continue;
      const auto reach = [&](std::size_t to) {
        if (to == at || reached_from[to] != none) return;
        reached_from[to] = at;
        found = found || to == start;
        next.push_back(to);
      };
      if (by.one) reach(*by.one);
      for (const node_list* const each : by.any_of) {
        if (each == all_with_start || each == calls_with_start) reach(start);
        if (!found && looked_at.insert(each).second) std::for_each(each->begin(), each->end(), reach);
      }
    }
    if (!found) continue;
    cycle_of_waits here;
    std::set<std::string> workers;
    const auto add = [&](std::size_t at) {
      here.nodes.push_back(&nodes_[at]);
      here.running = here.running || edges_[at].running;
      here.collectives = here.collectives || edges_[at].collective;
      workers.insert(nodes_[at].worker);
    };
    for (std::size_t at = reached_from[start]; at != start; at = reached_from[at]) add(at);
    add(start);
    std::reverse(here.nodes.begin(), here.nodes.end());
    if (workers.size() < 2) continue;  // calls to oneself are made in any order
    if (best.nodes.empty() || here.nodes.size() < best.nodes.size()) best = std::move(here);
  }
  return best;
}

}  // namespace ferry_top
