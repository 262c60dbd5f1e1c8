// When reference controls are sent and resent.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "rpc/references/protocol/reference_outbox.hpp"

namespace reference_outbox_test {

using namespace ferry::detail;
using namespace std::chrono_literals;
using kind = reference_control::kind;

namespace {

reference_control control(kind what, std::uint64_t number = 1) { return {what, {}, {}, number}; }
std::vector<reference_control> begin(reference_outbox& outbox) {
  std::vector<reference_control> batch;
  outbox.begin(batch);
  return batch;
}

}  // namespace

TEST_CASE("deletions and acknowledgements are delayed for batching, other controls are not") {
  const ferry::clock::time_point now{1h};
  reference_outbox outbox;
  CHECK(outbox.empty());
  outbox.add(control(kind::user_delete), now, false);
  CHECK_FALSE(outbox.due(now));
  CHECK(outbox.waits());
  CHECK(outbox.due_at() == now + reference_outbox::batch_delay);
  outbox.add(control(kind::child_accept), now + 500us, false);
  CHECK(outbox.due_at() == now + reference_outbox::batch_delay);  // of the first one
  CHECK(outbox.due(now + reference_outbox::batch_delay));
  outbox.add(control(kind::fork_request), now, false);
  REQUIRE(outbox.due(now));
  CHECK(begin(outbox).size() == 3);
  CHECK_FALSE(outbox.waits());

  // One batch is in flight at a time; controls added meanwhile have their own delay.
  outbox.add(control(kind::user_delete), now + 1ms, false);
  CHECK_FALSE(outbox.due(now + 1h));
  outbox.answered();
  CHECK_FALSE(outbox.due(now + 1ms));
  CHECK(outbox.due(now + 2ms));
  CHECK(begin(outbox).size() == 1);
  outbox.answered();
  CHECK(outbox.empty());
}

TEST_CASE("many deletions are not delayed, nor are those of a leaving worker") {
  const ferry::clock::time_point now{1h};
  reference_outbox outbox;
  for (std::size_t i = 1; i != reference_outbox::enough; ++i) outbox.add(control(kind::user_delete, i), now, false);
  CHECK_FALSE(outbox.due(now));
  outbox.add(control(kind::user_delete), now, false);
  CHECK(outbox.due(now));

  reference_outbox leaving;
  leaving.add(control(kind::user_delete), now, false);
  leaving.flush();
  CHECK(leaving.due(now));
  reference_outbox flushed;
  flushed.add(control(kind::user_delete), now, true);
  CHECK(flushed.due(now));
}

TEST_CASE("controls that do not fit into one batch follow at once in the next") {
  const ferry::clock::time_point now{1h};
  reference_outbox outbox;
  for (std::size_t i = 0; i != reference_outbox::most_at_once + 1; ++i) {
    outbox.add(control(kind::user_delete, i), now, false);
  }
  CHECK(begin(outbox).size() == reference_outbox::most_at_once);
  outbox.answered();
  CHECK(outbox.due(now));
  const auto rest = begin(outbox);
  REQUIRE(rest.size() == 1);
  CHECK(rest.front().number == reference_outbox::most_at_once);
}

TEST_CASE("controls leave in their order, however many are answered meanwhile") {
  const ferry::clock::time_point now{1h};
  reference_outbox outbox;
  std::uint64_t added = 0;
  std::uint64_t expected = 0;
  const auto add = [&](std::size_t count) {
    for (std::size_t i = 0; i != count; ++i) outbox.add(control(kind::user_delete, added++), now, true);
  };
  for (const std::size_t count : {5000, 10, 0, 1, 3000, 0, 0, 0, 0, 0, 0}) {
    add(count);
    CHECK(outbox.size() == added - expected);
    const auto batch = begin(outbox);
    CHECK(batch.size() == std::min<std::size_t>(added - expected, reference_outbox::most_at_once));
    add(1);  // while it is under way
    for (const reference_control& each : batch) CHECK(each.number == expected++);
    outbox.answered();
  }
}

TEST_CASE("unanswered controls are resent with growing pauses until they are answered") {
  ferry::clock::time_point now{1h};
  reference_outbox outbox;
  outbox.add(control(kind::user_delete, 1), now, true);
  auto pause = reference_outbox::first_pause;
  for (int i = 0; i != 10; ++i) {
    CHECK(begin(outbox).front().number == 1);
    outbox.failed(now);
    outbox.add(control(kind::fork_request, 2), now, false);  // delayed by the pause, too
    CHECK_FALSE(outbox.due(now + pause - 1ms));
    CHECK(outbox.due(now + pause));
    CHECK(outbox.due_at() == now + pause);
    now += pause;
    pause = std::min(pause * 2, reference_outbox::longest_pause);
  }
  CHECK(pause == reference_outbox::longest_pause);
  CHECK(begin(outbox).size() == 11);
  outbox.answered();
  CHECK(outbox.empty());
  CHECK(outbox.failures() == 0);
}

}  // namespace reference_outbox_test
