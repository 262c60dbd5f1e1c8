// All that can happen to references in small worlds (reference_model.hpp).

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "reference_model.hpp"

using namespace ferry_test::model;

namespace {

/// FERRY_MODEL_DEPTH=1 adds large worlds, 2 a loss and a duplicate to each, and so on. Each step costs about ten times the time.
int extra_depth() {
  const char* depth = std::getenv("FERRY_MODEL_DEPTH");
  return depth == nullptr ? 0 : std::atoi(depth);
}

std::string report(const outcome& found) {
  std::string text = found.problem;
  for (const std::string& step : found.story) text += "\n  " + step;
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
      {.name = "an object is handed on before it is made",
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
      {.name = "a holder hands on",
       .there = {{0, 1}},
       .hands = {{0, 2}},
       .losses = 1,
       .duplicates = 1,
       .stop_level = 1,
       .unsent = 1},
      {.name = "a holder tells which of its hand-overs will not arrive",
       .there = {{0, 1}},
       .hands = {{0, 2}, {0, 2}},
       .duplicates = 1,
       .stop_level = 1,
       .unsent = 1,
       .tells_gaps = true},
      {.name = "the owner tells which of its hand-overs will not arrive",
       .there = {{1, 1}},
       .hands = {{1, 0}, {1, 0}},
       .losses = 1,
       .stop_level = 1,
       .unsent = 1,
       .tells_gaps = true},
      {.name = "a holder hands on what it is handed", .there = {{0, 1}}, .hands = {{0, 2}, {2, 0}}, .duplicates = 1},
      {.name = "a reference goes to its owner and back",
       .there = {{0, 1}},
       .hands = {{0, 1}, {1, 2}},
       .losses = 1,
       .duplicates = 1},
      {.name = "the owner hands on", .there = {{1, 1}}, .hands = {{1, 0}, {0, 2}}, .losses = 1, .duplicates = 1},
      {.name = "references come in replies",
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
      {.name = "a holder passes to itself",
       .there = {{0, 1}},
       .hands = {{0, 0}},
       .losses = 1,
       .duplicates = 1,
       .stop_level = 1},
      {.name = "somebody dies while an object is made",
       .creates = {{0, 1}},
       .hands = {{0, 2}},
       .losses = 1,
       .duplicates = 1,
       .crashes = 1,
       .ghosts = true},
      {.name = "somebody dies while a holder hands on",
       .there = {{0, 1}},
       .hands = {{0, 2}},
       .losses = 1,
       .duplicates = 1,
       .crashes = 1,
       .ghosts = true},
      {.name = "somebody dies while the owner hands on",
       .there = {{1, 1}},
       .hands = {{1, 0}, {0, 2}},
       .duplicates = 1,
       .crashes = 1},
      {.name = "somebody dies while a reference comes in a reply",
       .there = {{1, 1}},
       .hands = {{0, 1}, {1, 0}},
       .replies = 1,
       .crashes = 1,
       .ghosts = true},
  };
  return all;
}

/// With FERRY_MODEL_DEPTH alone.
const std::vector<rules>& large_worlds() {
  static const std::vector<rules> all{
      {.name = "two objects are made at once", .creates = {{0, 1}, {2, 1}}, .hands = {{0, 2}}, .stop_level = 1},
      {.name = "an object is made, handed on in a circle",
       .creates = {{0, 1}},
       .hands = {{0, 2}, {2, 1}, {1, 0}},
       .stop_level = 1},
      {.name = "the owner and a holder give to one worker",
       .there = {{0, 1}, {1, 1}},
       .hands = {{0, 2}, {1, 2}},
       .losses = 1,
       .crashes = 1},
      {.name = "a dying worker hands on what it made",
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
      {.name = "made at the owner itself and given away",
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
      {.name = "used by a child while somebody dies",
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
      {.name = "a dead worker hands on",
       .there = {{0, 1}},
       .hands = {{0, 2}, {2, 0}},
       .losses = 1,
       .crashes = 1,
       .zombies = true},
      {.name = "a dead owner hands on",
       .there = {{1, 1}},
       .hands = {{1, 0}, {0, 2}},
       .losses = 1,
       .duplicates = 1,
       .crashes = 1,
       .ghosts = true,
       .zombies = true},
      {.name = "replies of the dead",
       .there = {{1, 1}},
       .hands = {{0, 1}, {1, 0}},
       .replies = 1,
       .crashes = 1,
       .zombies = true},
  };
  return all;
}

struct broken {
  spoiled by;
  std::string_view what;
  std::string_view world;  ///< in which it shows
};
constexpr broken faults[] = {
    {spoiled::accepts_early, "a child frees its parent before the owner knows it", "a holder hands on"},
    {spoiled::forgets_claims, "the owner forgets which claims have ended", "a holder hands on"},
    {spoiled::ignores_pins, "a fork ends although a hand-over needs it", "a holder hands on"},
    {spoiled::keeps_the_dead, "the forks of the dead are not released", "somebody dies while a holder hands on"},
    {spoiled::forgets_seen, "a child forgets which hand-overs it has seen", "the owner hands on"},
    {spoiled::forgets_withdrawals, "a child forgets what it has withdrawn", "references come in replies"},
    {spoiled::grants_unregistered, "the owner does not note what it gives away", "the owner hands on"},
    {spoiled::never_repeats, "what is lost is not repeated", "a holder hands on"},
    {spoiled::no_query, "nobody asks for what may be lost", "a holder hands on"},
    {spoiled::keeps_awaiting, "the owner expects what the dead were to make", "somebody dies while an object is made"},
    {spoiled::settles_early, "a parent calls settled what is under way",
     "a holder tells which of its hand-overs will not arrive"},
};

}  // namespace

TEST_CASE("whatever happens, no reference is deleted early, none leaks and none waits for ever") {
  std::size_t states = 0;
  std::size_t steps = 0;
  std::vector<rules> all = worlds();
  if (extra_depth() > 0) all.insert(all.end(), large_worlds().begin(), large_worlds().end());
  const char* only = std::getenv("FERRY_MODEL_WORLD");
  for (rules& world : all) {
    if (only != nullptr && world.name.find(only) == std::string_view::npos) continue;
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

TEST_CASE("the model finds out what is wrong with a spoiled protocol") {
  for (const broken& fault : faults) {
    const auto place =
        std::find_if(worlds().begin(), worlds().end(), [&](const rules& each) { return each.name == fault.world; });
    REQUIRE(place != worlds().end());
    rules world = *place;
    world.by = fault.by;
    world.deeply = false;  // by what it leads to, not by what is behind
    const outcome found = explore(world);
    CHECK_FALSE_MESSAGE(found.problem.empty(), fault.what << " is not found");
    MESSAGE(fault.what << ": " << found.problem << ", after " << found.story.size() << " steps, in '" << world.name
                       << "', " << found.states << " states");
  }
}
