// What connections between workers of one process do beyond the transport conformance suite.

#include <doctest/doctest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include <ferry/test_kit/transport_conformance.hpp>

namespace inproc_connection_test {

namespace {

using namespace ferry::test_kit;

struct inproc_under_test {
  using tag = ferry::inproc;
  static ferry::transport_options options() { return {}; }
};

ferry::outgoing_message make_cancel(std::uint64_t id) {
  ferry::outgoing_message message;
  message.header.kind = ferry::frame_kind::cancel;
  message.header.call_id = id;
  message.finish();
  return message;
}

using event = std::pair<ferry::frame_kind, std::uint64_t>;

std::vector<event> events_of(const std::vector<ferry::inbound_message>& messages) {
  std::vector<event> result;
  for (const auto& each : messages) result.emplace_back(each.header.kind, each.header.call_id);
  return result;
}

}  // namespace

TEST_CASE("cancellations arrive although reading is paused, and again in their place") {
  constexpr auto request = ferry::frame_kind::request;
  constexpr auto cancel = ferry::frame_kind::cancel;
  linked_pair<inproc_under_test> pair;
  // The pause comes while the first cancellation is in the queue; the second comes later.
  pair.far_log->on_arrival = [&](ferry::connection& from, ferry::inbound_message& message) {
    if (message.header.kind != request || message.header.call_id != 0) return;
    pair.near_end->send(make_message(1, 10));
    pair.near_end->send(make_cancel(0));
    from.pause_reading();
  };
  pair.near_end->send(make_message(0, 10));
  CHECK(events_of(pair.far_log->take(2)) == std::vector<event>{{request, 0}, {cancel, 0}});

  pair.near_end->send(make_cancel(1));
  pair.near_end->send(make_message(2, 10));
  CHECK(events_of(pair.far_log->take(1)) == std::vector<event>{{cancel, 1}});
  CHECK(pair.near_end->unwritten_bytes() > 0);  // the rest waits

  pair.near_end->send(make_cancel(2));
  CHECK(events_of(pair.far_log->take(1)) == std::vector<event>{{cancel, 2}});
  pair.far_end->resume_reading();
  CHECK(events_of(pair.far_log->take(5)) ==
        std::vector<event>{{request, 1}, {cancel, 0}, {cancel, 1}, {request, 2}, {cancel, 2}});
  CHECK(pair.near_end->unwritten_bytes() == 0);

  pair.near_end->send(make_cancel(3));  // not paused: once
  pair.near_end->send(make_message(4, 10));
  CHECK(events_of(pair.far_log->take(2)) == std::vector<event>{{cancel, 3}, {request, 4}});
}

}  // namespace inproc_connection_test
