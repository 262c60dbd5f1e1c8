// Breadth-first search over all states of a model world.

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "reference_model.hpp"

namespace ferry_test::model {

namespace {

struct digest_hash {
  std::size_t operator()(const std::array<std::uint64_t, 2>& of) const noexcept { return of[0]; }
};

struct visited {
  std::uint32_t from = 0;
  std::uint32_t step = 0;  // the index of the action that led here
};

std::vector<std::string> trace_of(std::uint32_t state, const std::vector<visited>& states, const rules& with) {
  std::vector<std::uint32_t> steps;
  for (; state != 0; state = states[state].from) steps.push_back(states[state].step);
  std::reverse(steps.begin(), steps.end());
  std::vector<std::string> trace;
  world now = begin(with);
  for (const std::uint32_t step : steps) {
    const action next = actions(now, with)[step];
    trace.push_back(describe(now, next));
    std::string ignored;
    now = apply(now, next, with, ignored);
  }
  return trace;
}

// Whether the graph has a cycle: then some events may repeat for ever.
bool has_cycle(std::size_t states, const std::vector<std::pair<std::uint32_t, std::uint32_t>>& edges) {
  std::vector<std::uint32_t> first(states + 1);
  std::vector<std::uint32_t> incoming(states);
  for (const auto& [from, to] : edges) {
    ++first[from + 1];
    ++incoming[to];
  }
  for (std::size_t i = 0; i < states; ++i) first[i + 1] += first[i];
  std::vector<std::uint32_t> targets(edges.size());
  std::vector<std::uint32_t> next(first.begin(), first.end() - 1);
  for (const auto& [from, to] : edges) targets[next[from]++] = to;
  std::vector<std::uint32_t> open{0};
  std::size_t seen = 0;
  while (!open.empty()) {
    const std::uint32_t state = open.back();
    open.pop_back();
    ++seen;
    for (std::uint32_t edge = first[state]; edge != first[state + 1]; ++edge) {
      if (--incoming[targets[edge]] == 0) open.push_back(targets[edge]);
    }
  }
  return seen != states;
}

}  // namespace

outcome explore(const rules& with) {
  outcome result;
  std::unordered_map<std::array<std::uint64_t, 2>, std::uint32_t, digest_hash> known;
  std::vector<visited> states;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  std::deque<std::pair<std::uint32_t, world>> open;
  open.emplace_back(0, begin(with));
  known.emplace(digest(open.front().second), 0);
  states.emplace_back();
  while (!open.empty() && result.problem.empty()) {
    const auto [index, now] = std::move(open.front());
    open.pop_front();
    const std::vector<action> possible = actions(now, with);
    if (std::none_of(possible.begin(), possible.end(), [](const action& step) { return step.must; })) {
      ++result.at_rest;
      result.problem = check_at_rest(now);
      if (!result.problem.empty()) {
        result.trace = trace_of(index, states, with);
        break;
      }
    }
    for (std::uint32_t step = 0; step < possible.size(); ++step) {
      world after = apply(now, possible[step], with, result.problem);
      ++result.steps;
      const auto [place, fresh] = known.emplace(digest(after), static_cast<std::uint32_t>(states.size()));
      edges.emplace_back(index, place->second);
      if (fresh) {
        states.push_back({index, step});
        if (result.problem.empty()) result.problem = check(after, with.deeply);
        if (result.problem.empty()) open.emplace_back(place->second, std::move(after));
      }
      if (!result.problem.empty()) {
        result.trace = trace_of(index, states, with);
        result.trace.push_back(describe(now, possible[step]));
        break;
      }
    }
  }
  result.states = states.size();
  if (result.problem.empty() && has_cycle(states.size(), edges)) result.problem = "the events may repeat for ever";
  return result;
}

}  // namespace ferry_test::model
