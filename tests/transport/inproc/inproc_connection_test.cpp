// What connections between workers of one process do beyond the transport conformance suite.

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <ferry/test_kit/transport_conformance.hpp>

namespace inproc_connection_test {

namespace {

using namespace ferry::test_kit;
using ferry::test_kit::detail::flag_condition;

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

struct inproc_asleep : inproc_under_test {
  static ferry::transport_options options() {
    ferry::transport_options result;
    result.max_spin = {};
    return result;
  }
};

// What an agent does with a request: the handler runs on the thread that received it, after that has received.
struct handler : ferry::work {
  std::shared_ptr<ferry::connection> at;
  std::uint64_t id = 0;
  std::shared_future<void> until;

  static void start(ferry::reactor& on, std::shared_ptr<ferry::connection> at, std::uint64_t id,
                    std::shared_future<void> until) {
    auto* item = new handler;
    item->at = std::move(at);
    item->id = id;
    item->until = std::move(until);
    item->run = [](ferry::work* self) noexcept {
      const std::unique_ptr<handler> own(static_cast<handler*>(self));
      if (own->until.valid()) own->until.wait();
      own->at->send(make_message(own->id, 64));
    };
    on.post(item);
  }
};

constexpr std::uint64_t blocking = std::uint64_t{1} << 40U;  // the handlers of such requests wait for `release`

// Round trips whose requests are handled at the far end; the callers drive the near one.
template <class Under>
struct served_pair : linked_pair<Under> {
  std::promise<void> release;
  std::mutex mutex;
  std::vector<std::uint64_t> order;  // of the requests

  served_pair() : linked_pair<Under>(false) {
    this->server->prepare = [this, until = release.get_future().share()](recorder& log) {
      log.forget_messages();
      log.on_arrival = [this, until](ferry::connection&, ferry::inbound_message& message) {
        const auto id = message.header.call_id;
        {
          const std::lock_guard lock(mutex);
          order.push_back(id);
        }
        handler::start(*this->loop, this->far_end, id, id >= blocking ? until : std::shared_future<void>());
      };
    };
    this->near_log->forget_messages();
    this->connect_now();
  }

  // Returns once `arrived` is met, by whichever thread.
  void wait_for(flag_condition& arrived) {
    while (!arrived.done()) {
      if (!this->near_end->drive(arrived, ferry::deadline::after(patience))) arrived.flag.wait(false);
    }
  }
};

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

TEST_CASE_TEMPLATE("replies reach driving callers in every situation of the other threads", Under, inproc_under_test,
                   inproc_asleep) {
  constexpr std::uint64_t count = 3000;
  std::vector<flag_condition> arrived(3 * count);
  served_pair<Under> pair;
  pair.near_log->on_arrival = [&](ferry::connection& from, ferry::inbound_message& message) {
    auto& flag = arrived.at(message.header.call_id).flag;
    flag = true;
    flag.notify_all();
    from.interrupt_drive();
  };
  const auto calls = [&](std::uint64_t first, std::uint64_t at_once) {
    for (std::uint64_t i = first; i != first + count; i += at_once) {
      for (std::uint64_t each = i; each != i + at_once; ++each) pair.near_end->send(make_message(each, 64));
      for (std::uint64_t each = i; each != i + at_once; ++each) {
        if (i % 7 == 0) {
          arrived[each].flag.wait(false);
        } else {
          pair.wait_for(arrived[each]);
        }
      }
    }
  };
  calls(0, 1);
  std::thread other([&] { calls(count, 1); });
  calls(2 * count, 10);
  other.join();
  CHECK(pair.order.size() == 3 * count);
  std::vector<std::uint64_t> next{0, count, 2 * count};
  std::size_t wrong = 0;
  for (const std::uint64_t id : pair.order) wrong += next.at(id / count)++ != id;
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("a handler that blocks does not keep the messages behind it", Under, inproc_under_test,
                   inproc_asleep) {
  std::vector<flag_condition> arrived(4000);
  flag_condition unblocked;
  served_pair<Under> pair;
  pair.near_log->on_arrival = [&](ferry::connection& from, ferry::inbound_message& message) {
    auto& flag = (message.header.call_id < blocking ? arrived.at(message.header.call_id) : unblocked).flag;
    flag = true;
    flag.notify_all();
    from.interrupt_drive();
  };
  std::uint64_t next = 0;
  const auto call = [&](bool drive) {
    pair.near_end->send(make_message(next, 64));
    drive ? pair.wait_for(arrived[next]) : arrived[next].flag.wait(false);
    ++next;
  };
  while (next != 2000) call(true);  // threads of both sides spin by now, if they can gain
  pair.near_end->send(make_message(blocking, 64));
  for (int i = 0; i != 100; ++i) call(i % 2 == 0);
  CHECK_FALSE(unblocked.done());
  // A caller that waits for the slow reply does not keep the others from reading theirs.
  std::thread slow([&] { pair.wait_for(unblocked); });
  for (int i = 0; i != 500; ++i) call(true);
  CHECK_FALSE(unblocked.done());
  pair.release.set_value();
  slow.join();
}

TEST_CASE("a driver that sleeps leaves its place to the next one") {
  flag_condition slow;
  std::atomic<bool> left{false};
  served_pair<inproc_under_test> pair;
  pair.near_log->on_arrival = [&](ferry::connection& from, ferry::inbound_message&) {
    slow.flag = true;
    slow.flag.notify_all();
    from.interrupt_drive();
  };
  pair.near_end->send(make_message(blocking, 64));
  std::thread sleeper([&] {
    while (pair.near_end->drive(slow, {}) && !slow.done()) {
    }
    left = true;
    left.notify_all();
  });
  flag_condition never;
  while (!left) (void)pair.near_end->drive(never, ferry::deadline::after(std::chrono::milliseconds(1)));
  sleeper.join();
  CHECK_FALSE(slow.done());
  pair.release.set_value();
  pair.wait_for(slow);
}

}  // namespace inproc_connection_test
