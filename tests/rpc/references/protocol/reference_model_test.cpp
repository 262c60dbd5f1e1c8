// Exhaustive exploration of references in small worlds (reference_model.hpp).

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "reference_model.hpp"
#include "sanitizers.hpp"

namespace reference_model_test {

using namespace ferry_test::model;

namespace {

/// FERRY_MODEL_DEPTH=1 adds large worlds, 2 a loss and a duplicate to each, and so on. Each step costs about ten times the time.
int extra_depth() {
  const char* depth = std::getenv("FERRY_MODEL_DEPTH");
  return depth == nullptr ? 0 : std::atoi(depth);
}

std::string report(const outcome& found) {
  std::string text = found.problem;
  for (const std::string& step : found.trace) text += "\n  " + step;
  return text;
}

const std::vector<rules>& worlds() {
  static const std::vector<rules> all{
      {.name = "an object is made and dropped",
       .creates = {{0, 1}},
       .losses = 2,
       .duplicates = 2,
       .stop_level = 1,
       .unsent = 1},
      {.name = "a worker makes an object at itself",
       .creates = {{0, 0}},
       .hands = {{0, 0}},
       .losses = 1,
       .duplicates = 1,
       .stop_level = 1,
       .unsent = 1},
      {.name = "a reference is sent on before its object is made",
       .large = true,
       .creates = {{0, 1}},
       .hands = {{0, 2}},
       .losses = 1,
       .duplicates = 1,
       .stop_level = 1},
      {.name = "an object is used before it is made",
       .creates = {{0, 1}},
       .hands = {{0, 1}},
       .losses = 1,
       .duplicates = 1,
       .stop_level = 1},
      {.name = "a call on an object ends before the object is made",
       .creates = {{0, 1}},
       .uses = {0, 0},
       .losses = 1,
       .stop_level = 1,
       .impatience = 2,
       .crashes = 1},
      {.name = "a holder sends a reference",
       .there = {{0, 1}},
       .hands = {{0, 2}},
       .losses = 1,
       .duplicates = 1,
       .stop_level = 1,
       .unsent = 1},
      {.name = "a holder sends watermarks for transfers that will not arrive",
       .large = true,
       .there = {{0, 1}},
       .hands = {{0, 2}, {0, 2}},
       .duplicates = 1,
       .stop_level = 1,
       .unsent = 1,
       .sends_watermarks = true},
      {.name = "the owner sends watermarks for transfers that will not arrive",
       .there = {{1, 1}},
       .hands = {{1, 0}, {1, 0}},
       .losses = 1,
       .stop_level = 1,
       .unsent = 1,
       .sends_watermarks = true},
      {.name = "a holder sends on a reference that it received",
       .there = {{0, 1}},
       .hands = {{0, 2}, {2, 0}},
       .duplicates = 1},
      {.name = "a reference goes to its owner and back",
       .there = {{0, 1}},
       .hands = {{0, 1}, {1, 2}},
       .losses = 1,
       .duplicates = 1},
      {.name = "the owner sends a reference",
       .there = {{1, 1}},
       .hands = {{1, 0}, {0, 2}},
       .losses = 1,
       .duplicates = 1},
      {.name = "references arrive in replies",
       .there = {{1, 1}},
       .hands = {{1, 0}},
       .replies = 1,
       .losses = 1,
       .duplicates = 1,
       .stop_level = 1},
      {.name = "a call that makes an object is answered with a reference",
       .there = {{1, 1}},
       .creates = {{0, 1}},
       .replies = 1,
       .losses = 1,
       .duplicates = 1},
      {.name = "a holder sends a reference to itself",
       .there = {{0, 1}},
       .hands = {{0, 0}},
       .losses = 1,
       .duplicates = 1,
       .stop_level = 1},
      {.name = "a worker dies while an object is made",
       .large = true,
       .creates = {{0, 1}},
       .hands = {{0, 2}},
       .losses = 1,
       .duplicates = 1,
       .crashes = 1,
       .ghosts = true},
      {.name = "a worker dies while a holder sends a reference",
       .there = {{0, 1}},
       .hands = {{0, 2}},
       .losses = 1,
       .duplicates = 1,
       .crashes = 1,
       .ghosts = true},
      {.name = "a worker dies while the owner sends a reference",
       .there = {{1, 1}},
       .hands = {{1, 0}, {0, 2}},
       .duplicates = 1,
       .crashes = 1},
      {.name = "a worker dies while a reference arrives in a reply",
       .there = {{1, 1}},
       .hands = {{0, 1}, {1, 0}},
       .replies = 1,
       .crashes = 1,
       .ghosts = true},
  };
  return all;
}

/// Only with FERRY_MODEL_DEPTH.
const std::vector<rules>& large_worlds() {
  static const std::vector<rules> all{
      {.name = "two objects are made at once", .creates = {{0, 1}, {2, 1}}, .hands = {{0, 2}}, .stop_level = 1},
      {.name = "an object is made and its reference sent in a cycle",
       .creates = {{0, 1}},
       .hands = {{0, 2}, {2, 1}, {1, 0}},
       .stop_level = 1},
      {.name = "the owner and a holder send to one worker",
       .there = {{0, 1}, {1, 1}},
       .hands = {{0, 2}, {1, 2}},
       .losses = 1,
       .crashes = 1},
      {.name = "a dying worker sends a reference to its object",
       .creates = {{0, 1}},
       .hands = {{0, 2}, {2, 0}},
       .stop_level = 1,
       .crashes = 1,
       .ghosts = true},
      {.name = "replies of holders",
       .there = {{0, 1}},
       .hands = {{0, 2}},
       .replies = 1,
       .losses = 1,
       .stop_level = 1,
       .crashes = 1},
      {.name = "made at the owner itself and sent on",
       .creates = {{1, 1}},
       .hands = {{1, 0}, {0, 2}},
       .stop_level = 1,
       .crashes = 1},
      {.name = "used by its creator",
       .creates = {{0, 1}},
       .uses = {0, 0},
       .losses = 1,
       .duplicates = 1,
       .stop_level = 2,
       .unsent = 1},
      {.name = "used by a child",
       .creates = {{0, 1}},
       .hands = {{0, 2}},
       .uses = {2},
       .losses = 1,
       .duplicates = 1,
       .stop_level = 1},
      {.name = "used by a child while a worker dies",
       .creates = {{0, 1}},
       .hands = {{0, 2}},
       .uses = {2},
       .losses = 1,
       .crashes = 1,
       .ghosts = true},
      {.name = "arguments of a creation",
       .there = {{0, 1}},
       .creates = {{0, 2}},
       .arguments = true,
       .losses = 1,
       .duplicates = 1,
       .stop_level = 1,
       .unsent = 1,
       .crashes = 1},
      {.name = "arguments of a creation at the owner",
       .there = {{0, 1}},
       .creates = {{0, 1}},
       .arguments = true,
       .losses = 1,
       .duplicates = 1,
       .stop_level = 1,
       .unsent = 1,
       .crashes = 1},
      {.name = "a dead worker makes an object",
       .creates = {{0, 1}},
       .hands = {{0, 2}},
       .uses = {2},
       .losses = 1,
       .duplicates = 1,
       .crashes = 1,
       .zombies = true},
      {.name = "a dead worker sends a reference",
       .there = {{0, 1}},
       .hands = {{0, 2}, {2, 0}},
       .losses = 1,
       .crashes = 1,
       .zombies = true},
      {.name = "a dead owner sends a reference",
       .there = {{1, 1}},
       .hands = {{1, 0}, {0, 2}},
       .losses = 1,
       .duplicates = 1,
       .crashes = 1,
       .ghosts = true,
       .zombies = true},
      {.name = "replies of dead workers",
       .there = {{1, 1}},
       .hands = {{0, 1}, {1, 0}},
       .replies = 1,
       .crashes = 1,
       .zombies = true},
  };
  return all;
}

struct broken {
  defect by;
  std::string_view what;
  std::string_view world;  ///< the world in which it is detected
};
constexpr broken faults[] = {
    {defect::accepts_early, "a child releases its parent before the owner has registered it",
     "a holder sends a reference"},
    {defect::forgets_claims, "the owner does not record which claims have ended", "a holder sends a reference"},
    {defect::ignores_pins, "a fork ends although a transfer pins it", "a holder sends a reference"},
    {defect::keeps_dead_forks, "the forks of dead workers are not released",
     "a worker dies while a holder sends a reference"},
    {defect::forgets_seen, "a child does not record which transfers it has seen", "the owner sends a reference"},
    {defect::forgets_withdrawals, "a child does not record withdrawn transfers", "references arrive in replies"},
    {defect::grants_unregistered, "the owner does not register the forks that it sends", "the owner sends a reference"},
    {defect::never_repeats, "lost controls are not resent", "a holder sends a reference"},
    {defect::no_query, "no query follows a message that may be lost", "a holder sends a reference"},
    {defect::keeps_awaiting, "the owner expects creating calls of dead workers",
     "a worker dies while an object is made"},
    {defect::settles_early, "a parent's watermark covers transfers in flight",
     "a holder sends watermarks for transfers that will not arrive"},
};

}  // namespace

TEST_CASE("in all event orders no object is deleted early, no reference leaks and none waits for ever") {
  std::size_t states = 0;
  std::size_t steps = 0;
  std::vector<rules> all = worlds();
  if (extra_depth() > 0) all.insert(all.end(), large_worlds().begin(), large_worlds().end());
  const char* only = std::getenv("FERRY_MODEL_WORLD");
  for (rules& world : all) {
    if (only != nullptr && world.name.find(only) == std::string_view::npos) continue;
    if (ferry_test::sanitized && world.large && extra_depth() == 0) continue;
    if (extra_depth() > 1) {
      world.losses += extra_depth() - 1;
      world.duplicates += extra_depth() - 1;
    }
    const auto start = std::chrono::steady_clock::now();
    const outcome found = explore(world);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    states += found.states;
    steps += found.steps;
    MESSAGE(world.name << ": " << found.states << " states, " << found.steps << " steps, " << found.at_rest
                       << " at rest, " << spent.count() << " s");
    CHECK_MESSAGE(found.problem.empty(), world.name << ": " << report(found));
  }
  MESSAGE("together " << states << " states, " << steps << " steps");
}

TEST_CASE("the model detects each injected protocol defect") {
  for (const broken& fault : faults) {
    const auto place =
        std::find_if(worlds().begin(), worlds().end(), [&](const rules& each) { return each.name == fault.world; });
    REQUIRE(place != worlds().end());
    rules world = *place;
    world.by = fault.by;
    world.deeply = false;  // by its observable effect, not by internal invariants
    const outcome found = explore(world);
    CHECK_FALSE_MESSAGE(found.problem.empty(), fault.what << " is not found");
    MESSAGE(fault.what << ": " << found.problem << ", after " << found.trace.size() << " steps, in '" << world.name
                       << "', " << found.states << " states");
  }
}

}  // namespace reference_model_test
