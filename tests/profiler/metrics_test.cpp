// What is counted of calls, on both sides, by method and peer.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/profiler.hpp>
#include <ferry/rpc/interceptor.hpp>
#include <ferry/tensor/factories.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "processes.hpp"

#include "rpc/methods/method_table.hpp"
#include "rpc/worker/worker_core.hpp"

namespace metrics_test {

namespace profiler = ferry::profiler;
using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::cluster;
using ferry_test::gate;
using profiler::call_metrics;
using profiler::call_side;
using profiler::metrics;
using profiler::metrics_snapshot;

int square(int x) { return x * x; }
int cube(int x) { return x * x * x; }
int fails(int) { throw std::runtime_error("no"); }
void fails_one_way(int) { throw std::runtime_error("no"); }
std::size_t bytes_of(const std::string& text) { return text.size(); }
std::string text_of(int size) { return std::string(static_cast<std::size_t>(size), 'x'); }
gate& door() {
  static gate instance;
  return instance;
}
int behind_the_door(int x) {
  door().pass();
  return x;
}
void receive(int) { door().arrive(); }
ferry::promise<int>& promised() {
  static ferry::promise<int> instance;
  return instance;
}
ferry::future<int> later(int) {
  door().arrive();
  return promised().get_future();
}
ferry::task<int> in_turn(int x, std::string next) {
  const int found = co_await ferry::rpc_async<square>(next, x);
  co_return found + 1;
}

struct box {
  int value = 0;
  int times(int by) const { return value * by; }
};
box make_box(int value) { return {value}; }

// The only row of one method; its name is the compiler's.
call_metrics of_method(const metrics_snapshot& all, call_side side, std::string_view method) {
  call_metrics found;
  for (const call_metrics& each : all.calls) {
    if (each.side == side && each.method.find(method) != std::string::npos) found.merge(each);
  }
  return found;
}

// Reads until that is true of what was counted: the end of a one-way request is not told to its caller.
template <class Condition>
metrics_snapshot read_until(const metrics& from, const Condition& condition) {
  for (;;) {
    metrics_snapshot now = from.read();
    if (condition(now)) return now;
    std::this_thread::yield();
  }
}

void is_at_rest(const call_metrics& row) {
  CHECK(row.in_flight == 0);
  CHECK(row.not_sent == 0);
  CHECK(row.ended == row.duration.count());
}

// As many rounds as it takes until one fails with what it is about: a busy machine may not send a call in time.
void call_in_vain(const ferry::worker& from, std::chrono::milliseconds limit) {
  expect_timeout("", [&] { (void)from.rpc_sync<behind_the_door>(ferry::to("worker1", {.timeout = limit}), 1); });
}

// Refuses to let anything be sent while it is on.
class refuser final : public ferry::interceptor {
 public:
  std::atomic<bool> on{false};
  [[nodiscard]] std::string_view name() const noexcept override { return "refuser"; }
  std::unique_ptr<ferry::caller_hooks> on_request(ferry::outgoing_request&) override {
    if (on) ferry::throw_error(errc::resource_exhausted, "enough");
    return nullptr;
  }
};

TEST_CASE("calls of every kind that succeed are counted at both ends, by method and peer") {
  cluster group(3);
  const metrics at_caller(group[0]);
  const metrics at_callee(group[1]);
  for (int i = 0; i != 5; ++i) CHECK(group[0].rpc_sync<square>("worker1", 3) == 9);
  for (int i = 0; i != 3; ++i) CHECK(group[0].rpc_async<square>("worker1", 3).get() == 9);
  CHECK(group[0].rpc_sync<square>("worker2", 3) == 9);
  CHECK(group[0].rpc_sync<cube>("worker1", 3) == 27);
  CHECK(group[2].rpc_sync<cube>("worker1", 3) == 27);
  CHECK(group[1].rpc_sync<in_turn>("worker1", 3, std::string("worker2")) == 10);

  const metrics_snapshot caller = at_caller.read();
  const call_metrics to_one = caller.total(call_side::client, {}, "worker1");
  CHECK(to_one.calls == 9);
  CHECK(to_one.ended == 9);
  CHECK(to_one.failed() == 0);
  CHECK(caller.total(call_side::client, {}, "worker2").calls == 1);
  CHECK(caller.total(call_side::server).calls == 0);
  const call_metrics squares = of_method(caller, call_side::client, "square");
  CHECK(squares.calls == 9);
  CHECK(squares.duration.count() == 9);
  CHECK(squares.duration.sum().count() > 0);
  CHECK(squares.queued.count() == 0);
  for (const call_metrics& each : caller.calls) {
    CHECK(each.worker == "worker0");
    is_at_rest(each);
  }

  const metrics_snapshot callee = at_callee.read();
  CHECK(of_method(callee, call_side::server, "square").calls == 8);
  CHECK(of_method(callee, call_side::server, "cube").calls == 2);
  CHECK(callee.total(call_side::server, {}, "worker0").calls == 9);
  CHECK(callee.total(call_side::server, {}, "worker2").calls == 1);
  const call_metrics turns = of_method(callee, call_side::server, "in_turn");
  CHECK(turns.peer.empty());  // a sum has no name
  CHECK(turns.calls == 1);
  CHECK(turns.duration.count() == 1);
  CHECK(of_method(callee, call_side::client, "square").calls == 1);  // of the coroutine
  for (const call_metrics& each : callee.calls) {
    is_at_rest(each);
    if (each.side == call_side::server) CHECK(each.queued.count() == each.calls);
  }
  CHECK(std::is_sorted(callee.calls.begin(), callee.calls.end(), [](const auto& a, const auto& b) {
    return std::tie(a.worker, a.side, a.method, a.peer) < std::tie(b.worker, b.side, b.method, b.peer);
  }));
  CHECK(callee.lost_events == 0);
  CHECK(callee.folded_series == 0);
  CHECK(callee.duration.count() > 0);
}

TEST_CASE("calls on objects and those that make them are counted") {
  cluster group(2);
  const metrics recorded(group[0]);
  {
    const auto made = group[0].remote<make_box>("worker1", 7);
    CHECK(made.rpc_sync<&box::times>(6) == 42);
  }
  const metrics_snapshot now = recorded.read();
  CHECK(of_method(now, call_side::client, "make_box").calls == 1);
  CHECK(of_method(now, call_side::client, "times").calls == 1);
  is_at_rest(of_method(now, call_side::client, "times"));
}

TEST_CASE("one-way calls are counted apart from others, at both ends") {
  cluster group(2);
  door().reset();
  const metrics at_caller(group[0]);
  const metrics at_callee(group[1]);
  for (int i = 0; i != 4; ++i) group[0].notify<receive>("worker1", i);
  const call_metrics sent = at_caller.read().total(call_side::client);
  CHECK(sent.one_way == 4);
  CHECK(sent.calls == 0);
  CHECK(sent.ended == 0);
  CHECK(sent.in_flight == 0);
  CHECK(sent.sent_bytes >= 4 * 64);
  const metrics_snapshot done =
      read_until(at_callee, [](const metrics_snapshot& now) { return now.total(call_side::server).ended == 4; });
  const call_metrics received = done.total(call_side::server);
  CHECK(received.one_way == 4);
  CHECK(received.calls == 0);
  CHECK(received.in_flight == 0);
  CHECK(received.duration.count() == 4);
  CHECK(received.received_bytes == sent.sent_bytes);
  CHECK(received.sent_bytes == 0);
}

TEST_CASE("what handlers throw is counted by its code, also of one-way requests") {
  cluster group(2);
  const metrics at_caller(group[0]);
  const metrics at_callee(group[1]);
  for (int i = 0; i != 3; ++i) CHECK_THROWS_AS((void)group[0].rpc_sync<fails>("worker1", i), std::runtime_error);
  CHECK_THROWS_AS((void)group[0].rpc_async<fails>("worker1", 1).get(), std::runtime_error);
  CHECK(group[0].rpc_sync<square>("worker1", 2) == 4);
  const call_metrics caller = of_method(at_caller.read(), call_side::client, "fails");
  CHECK(caller.calls == 4);
  CHECK(caller.failed() == 4);
  CHECK(caller.errors_of(errc::remote_exception) == 4);
  is_at_rest(caller);
  const call_metrics callee = of_method(at_callee.read(), call_side::server, "fails");
  CHECK(callee.calls == 4);
  CHECK(callee.errors_of(errc::remote_exception) == 4);
  CHECK(callee.sent_bytes == caller.received_bytes);
  is_at_rest(callee);
  CHECK(of_method(at_callee.read(), call_side::server, "square").failed() == 0);

  group[0].notify<fails_one_way>("worker1", 1);
  const metrics_snapshot done = read_until(at_callee, [](const metrics_snapshot& now) {
    return of_method(now, call_side::server, "fails_one_way").ended != 0;
  });
  const call_metrics one_way = of_method(done, call_side::server, "fails_one_way");
  CHECK(one_way.one_way == 1);
  CHECK(one_way.ended == 1);
  CHECK(one_way.errors_of(errc::remote_exception) == 1);
  CHECK(one_way.in_flight == 0);
}

TEST_CASE("calls in flight, that time out and that are cancelled are counted at both ends") {
  cluster group(2);
  door().reset();
  const metrics at_caller(group[0]);
  const metrics at_callee(group[1]);
  const ferry::future<int> first = group[0].rpc_async<behind_the_door>("worker1", 1);
  door().await_arrivals(1);
  CHECK(at_caller.read().total(call_side::client).in_flight == 1);
  CHECK(at_callee.read().total(call_side::server).in_flight == 1);

  ferry::future<int> second = group[0].rpc_async<behind_the_door>("worker1", 2);
  door().await_arrivals(2);
  second.cancel();
  expect_error(errc::call_cancelled, "", [&] { (void)second.get(); });
  std::stop_source stop;
  std::thread stopper([&] {
    door().await_arrivals(3);
    stop.request_stop();
  });
  const std::stop_token token = stop.get_token();
  expect_error(errc::call_cancelled, "",
               [&] { (void)group[0].rpc_sync<behind_the_door>(ferry::to("worker1", {.stop = token}), 3); });
  stopper.join();
  call_in_vain(group[0], 100ms);

  const call_metrics caller = at_caller.read().total(call_side::client);
  CHECK(caller.in_flight == 1);
  CHECK(caller.cancelled() == 2);
  CHECK(caller.timed_out() == 1);
  CHECK(caller.failed() == 3);
  CHECK(caller.ended == 3);
  door().open();
  CHECK(first.get() == 1);
  const metrics_snapshot done =
      read_until(at_callee, [&](const metrics_snapshot& now) { return now.total(call_side::server).in_flight == 0; });
  const call_metrics after = at_caller.read().total(call_side::client);
  CHECK(after.calls == 4);
  is_at_rest(after);
  // A handler that could not be told in time has answered all the same; all have ended.
  CHECK(done.total(call_side::server).calls >= 3);
  CHECK(done.total(call_side::server).ended == done.total(call_side::server).calls);
}

TEST_CASE("a request whose handler has returned a future lasts until that is ready, or its caller gives it up") {
  cluster group(2);
  door().reset();
  promised() = ferry::promise<int>();
  const metrics at_callee(group[1]);
  const ferry::future<int> waits = group[0].rpc_async<later>("worker1", 1);
  door().await_arrivals(1);
  CHECK(at_callee.read().total(call_side::server).in_flight == 1);
  const auto before = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < before + 5ms) std::this_thread::yield();
  promised().set_value(8);
  CHECK(waits.get() == 8);
  const call_metrics row = at_callee.read().total(call_side::server);
  CHECK(row.duration.count() == 1);
  CHECK(row.duration.sum() >= 5ms);
  is_at_rest(row);

  SUBCASE("it is refused when it is given up, once") {
    promised() = ferry::promise<int>();
    ferry::future<int> given_up = group[0].rpc_async<later>("worker1", 1);
    door().await_arrivals(2);
    given_up.cancel();
    const metrics_snapshot done =
        read_until(at_callee, [](const metrics_snapshot& now) { return now.total(call_side::server).ended == 2; });
    CHECK(done.total(call_side::server).cancelled() == 1);
    promised().set_value(9);
    CHECK(group[0].rpc_sync<square>("worker1", 2) == 4);
    const call_metrics all = at_callee.read().total(call_side::server);
    CHECK(all.calls == 3);
    CHECK(all.ended == 3);
    CHECK(all.in_flight == 0);
  }
}

TEST_CASE("the time in the queue is told from that of the handler") {
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  door().reset();
  const metrics at_callee(group[1]);
  const ferry::future<int> first = group[0].rpc_async<behind_the_door>("worker1", 1);
  door().await_arrivals(1);
  const ferry::future<int> second = group[0].rpc_async<square>("worker1", 3);
  while (at_callee.read().total(call_side::server).calls < 2) std::this_thread::yield();
  const auto before = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < before + 20ms) std::this_thread::yield();
  door().open();
  CHECK(first.get() == 1);
  CHECK(second.get() == 9);
  const call_metrics queued = of_method(at_callee.read(), call_side::server, "square");
  CHECK(queued.queued.sum() >= 20ms);
  CHECK(queued.duration.sum() < queued.queued.sum());
  const call_metrics ran = of_method(at_callee.read(), call_side::server, "behind_the_door");
  CHECK(ran.duration.sum() >= 20ms);
}

TEST_CASE("bytes are those of whole messages, and what one end sends the other one receives") {
  cluster group(2);
  const metrics at_caller(group[0]);
  const metrics at_callee(group[1]);
  CHECK(group[0].rpc_sync<bytes_of>("worker1", std::string(1000, 'x')) == 1000);
  CHECK(group[0].rpc_sync<text_of>("worker1", 5000).size() == 5000);
  const call_metrics caller = at_caller.read().total(call_side::client);
  const call_metrics callee = at_callee.read().total(call_side::server);
  CHECK(caller.sent_bytes >= 1000 + 2 * 64);
  CHECK(caller.received_bytes >= 5000 + 2 * 64);
  CHECK(caller.sent_bytes == callee.received_bytes);
  CHECK(caller.received_bytes == callee.sent_bytes);
  const auto traffic = group[0].traffic();
  const auto to_callee =
      std::find_if(traffic.begin(), traffic.end(), [](const auto& each) { return each.peer.name() == "worker1"; });
  REQUIRE(to_callee != traffic.end());
  CHECK(to_callee->bytes_sent >= caller.sent_bytes);
}

TEST_CASE("calls that could not be sent are counted as such, with their codes") {
  const auto refusing = std::make_shared<refuser>();
  cluster group(2, {.configure = [&](ferry::worker_config& config) { config.interceptors = {refusing}; }});
  const metrics recorded(group[0]);
  CHECK(group[0].rpc_sync<square>("worker1", 2) == 4);
  refusing->on = true;
  expect_error(errc::resource_exhausted, "enough", [&] { (void)group[0].rpc_sync<square>("worker1", 2); });
  expect_error(errc::resource_exhausted, "enough", [&] { (void)group[0].rpc_async<square>("worker1", 2).get(); });
  expect_error(errc::resource_exhausted, "enough", [&] { group[0].notify<receive>("worker1", 2); });
  refusing->on = false;
  const metrics_snapshot now = recorded.read();
  const call_metrics row = of_method(now, call_side::client, "square");
  CHECK(row.calls == 1);
  CHECK(row.ended == 1);
  CHECK(row.not_sent == 2);
  CHECK(row.errors_of(errc::resource_exhausted) == 2);
  CHECK(row.in_flight == 0);
  CHECK(of_method(now, call_side::client, "receive").not_sent == 1);
}

TEST_CASE("replies that come late are counted with their method and peer") {
  cluster group(2);
  const metrics recorded(group[0]);
  CHECK(group[0].rpc_sync<square>("worker1", 2) == 4);
  const ferry::worker_info callee = group[1].info();
  const auto reply_late = [&](std::uint64_t method) {
    group[0].core()->on_link_event(
        {.what = ferry::link_event::kind::late_reply, .who = callee, .text = {}, .call_id = 9, .method = method});
  };
  const auto known = ferry::detail::method_names();
  const auto found = std::find_if(known.begin(), known.end(),
                                  [](const auto& each) { return each.second.find("square") != std::string::npos; });
  REQUIRE(found != known.end());
  reply_late(found->first);
  reply_late(found->first);
  reply_late(0);
  const metrics_snapshot now = recorded.read();
  const call_metrics row = of_method(now, call_side::client, "square");
  CHECK(row.late_replies == 2);
  CHECK(row.calls == 1);
  CHECK(now.total(call_side::client, {}, "worker1").late_replies == 3);
  CHECK(of_method(now, call_side::client, "unknown").late_replies == 1);
  CHECK(now.total(call_side::client).late_replies == 3);
  CHECK(group[0].flight_record().find(R"("event": "late_reply")") != std::string::npos);
}

TEST_CASE("threads that call at once lose no count") {
  constexpr int threads = 4;
  constexpr int calls = 200;
  cluster group(2);
  const metrics at_caller(group[0]);
  const metrics at_callee(group[1]);
  for (int round = 1; round != 3; ++round) {  // the second round's threads go on with the shards of the first one's
    std::vector<std::thread> all;
    for (int i = 0; i != threads; ++i) {
      all.emplace_back([&] {
        for (int call = 0; call != calls; ++call) (void)group[0].rpc_sync<square>("worker1", call);
      });
    }
    for (std::thread& each : all) each.join();
    const call_metrics caller = of_method(at_caller.read(), call_side::client, "square");
    CHECK(caller.calls == static_cast<std::uint64_t>(round) * threads * calls);
    is_at_rest(caller);
    const call_metrics callee = of_method(at_callee.read(), call_side::server, "square");
    CHECK(callee.calls == caller.calls);
    is_at_rest(callee);
  }
}

TEST_CASE("snapshots are read while calls run, and each count only grows") {
  cluster group(2);
  const metrics recorded(group[0]);
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop) (void)group[0].rpc_sync<square>("worker1", 1);
  });
  std::uint64_t last = 0;
  while (last < 300) {
    const call_metrics row = of_method(recorded.read(), call_side::client, "square");
    CHECK(row.ended >= last);
    CHECK(row.in_flight >= 0);
    CHECK(row.in_flight <= 1);
    last = row.ended;
  }
  stop = true;
  caller.join();
}

TEST_CASE("methods and peers beyond the bound are summed as 'other', and how many these are is told") {
  cluster group(3);
  const metrics recorded(group[0], {.max_series = 1});
  CHECK(group[0].rpc_sync<square>("worker1", 2) == 4);
  for (int i = 0; i != 2; ++i) {
    CHECK(group[0].rpc_sync<square>("worker2", 2) == 4);
    CHECK(group[0].rpc_sync<cube>("worker1", 2) == 8);
    CHECK(group[0].rpc_sync<cube>("worker2", 2) == 8);
    CHECK_THROWS_AS((void)group[0].rpc_sync<fails>("worker2", 2), std::runtime_error);
  }
  CHECK(group[2].rpc_sync<square>("worker0", 2) == 4);
  const metrics_snapshot now = recorded.read();
  CHECK(now.folded_series == 5);
  REQUIRE(now.calls.size() == 3);
  CHECK(now.total(call_side::client, {}, "worker1").calls == 1);
  const call_metrics other = now.total(call_side::client, "other", "other");
  CHECK(other.calls == 8);
  CHECK(other.errors_of(errc::remote_exception) == 2);
  is_at_rest(other);
  CHECK(now.total(call_side::server, "other", "other").calls == 1);
}

TEST_CASE("a worker has one metrics at a time; the next begins at zero, and calls under way then are not counted") {
  cluster group(2);
  door().reset();
  auto first = std::make_unique<metrics>(group[0], profiler::metrics_options{.max_series = 8});
  expect_error(errc::invalid_argument, "already", [&] { const metrics second(group[0]); });
  CHECK(group[0].rpc_sync<square>("worker1", 2) == 4);
  const ferry::future<int> under_way = group[0].rpc_async<behind_the_door>("worker1", 1);
  door().await_arrivals(1);
  CHECK(first->read().total(call_side::client).in_flight == 1);
  first.reset();
  CHECK(group[0].rpc_sync<square>("worker1", 2) == 4);  // not counted
  const metrics second(group[0]);
  CHECK(second.read().calls.empty());
  door().open();
  CHECK(under_way.get() == 1);
  CHECK(group[0].rpc_sync<square>("worker1", 2) == 4);
  const metrics_snapshot now = second.read();
  const call_metrics all = now.total(call_side::client);
  CHECK(all.calls == 1);
  CHECK(all.ended == 1);
  CHECK(all.in_flight == 0);
  CHECK(now.calls.size() == 1);
  expect_error(errc::invalid_argument, "max_series", [&] { const metrics none(group[1], {.max_series = 0}); });
}

TEST_CASE(
    "snapshots of several workers are merged in any order, and the difference of two is what happened in between") {
  cluster group(2);
  const metrics zero(group[0]);
  const metrics one(group[1]);
  CHECK(group[0].rpc_sync<square>("worker1", 2) == 4);
  const metrics_snapshot before = zero.read();
  CHECK(group[0].rpc_sync<square>("worker1", 2) == 4);
  CHECK(group[0].rpc_sync<cube>("worker1", 2) == 8);
  CHECK_THROWS_AS((void)group[1].rpc_sync<fails>("worker0", 2), std::runtime_error);
  const metrics_snapshot after = zero.read();
  const metrics_snapshot other = one.read();

  metrics_snapshot between = after;
  between.subtract(before);
  CHECK(of_method(between, call_side::client, "square").calls == 1);
  CHECK(of_method(between, call_side::client, "square").duration.count() == 1);
  CHECK(of_method(between, call_side::client, "cube").calls == 1);
  CHECK(of_method(between, call_side::server, "fails").errors_of(errc::remote_exception) == 1);
  CHECK(between.duration == after.duration - before.duration);

  metrics_snapshot left = before;
  left.merge(between).merge(other);
  metrics_snapshot right = other;
  right.merge(between);
  metrics_snapshot turned = right;
  turned.merge(before);
  REQUIRE(left.calls.size() == turned.calls.size());
  REQUIRE(left.calls.size() == after.calls.size() + other.calls.size());
  for (std::size_t i = 0; i != left.calls.size(); ++i) {
    const call_metrics& a = left.calls[i];
    const call_metrics& b = turned.calls[i];
    CHECK(a.worker == b.worker);
    CHECK(a.method == b.method);
    CHECK(a.calls == b.calls);
    CHECK(a.duration == b.duration);
    CHECK(a.errors == b.errors);
  }
  CHECK(of_method(left, call_side::client, "square").calls == 2);
  CHECK(left.total(call_side::client).calls == left.total(call_side::server).calls);
}

TEST_CASE("connections that are opened, lost and opened again are counted by peer") {
  cluster group(3, {.configure = [](ferry::worker_config& config) { config.transports = {"tcp"}; }});
  const metrics recorded(group[0]);
  const auto to_worker1 = [&] {
    for (const profiler::peer_metrics& each : recorded.read().peers) {
      CHECK(each.worker == "worker0");
      if (each.peer == "worker1") return each;
    }
    return profiler::peer_metrics{};
  };
  CHECK(group[0].rpc_sync<square>("worker1", 2) == 4);
  CHECK(group[0].rpc_sync<square>("worker2", 2) == 4);
  const profiler::peer_metrics first = to_worker1();
  CHECK(first.connections_opened >= 1);
  CHECK(first.connections_lost == 0);
  CHECK(first.reconnects == 0);
  ferry_test::break_tcp_connections();
  while (to_worker1().reconnects == 0) {
    try {
      (void)group[0].rpc_sync<square>("worker1", 2);
    } catch (const ferry::error&) {  // the connection that has broken
    }
  }
  const profiler::peer_metrics last = to_worker1();
  CHECK(last.connections_lost >= 1);
  CHECK(last.connections_opened > first.connections_opened);
  CHECK(last.reconnects <= last.connections_lost);
  profiler::metrics_snapshot twice = recorded.read();
  const std::size_t rows = twice.peers.size();
  twice.merge(recorded.read());
  CHECK(twice.peers.size() == rows);
  twice.subtract(recorded.read());
  for (const profiler::peer_metrics& each : twice.peers) {
    if (each.peer == "worker2") CHECK(each.connections_opened >= 1);
  }
}

TEST_CASE("figures of the worker are read when they are asked for") {
  cluster group(2);
  std::atomic<int> rows{3};
  group[0].add_debug_info("test", {{"test.rows", [&] { return std::to_string(rows.load()); }},
                                   {"test.text", [] { return std::string("many"); }},
                                   {"test.throws", []() -> std::string { throw std::runtime_error("broken"); }}});
  const metrics recorded(group[0]);
  const auto value = [&](std::string_view name) -> std::optional<double> {
    for (const profiler::worker_figure& each : recorded.read().figures) {
      CHECK(each.worker == "worker0");
      if (each.name == name) return each.value;
    }
    return std::nullopt;
  };
  CHECK(value("test.rows") == 3);
  rows = 5;
  CHECK(value("test.rows") == 5);
  CHECK_FALSE(value("test.text"));
  CHECK_FALSE(value("test.throws"));
  CHECK(value("agent.thread_pool_size").value_or(0) >= 1);
  CHECK(value("num_owner_rrefs") == 0);
  const ferry::tensor held = ferry::zeros({1 << 20}, ferry::dtype::u8);
  CHECK(value("memory.cpu.reserved_bytes").value_or(0) >= 1 << 20);
  CHECK(value("memory.cpu.cached_bytes").value_or(-1) >= 0);
}

TEST_CASE("metrics outlive their worker, and workers their metrics") {
  auto group = std::make_unique<cluster>(2);
  std::optional<metrics> recorded(std::in_place, (*group)[0]);
  {
    const metrics short_lived((*group)[1]);
    CHECK((*group)[0].rpc_sync<square>("worker1", 2) == 4);
  }
  CHECK((*group)[0].rpc_sync<square>("worker1", 2) == 4);
  group->shutdown();
  CHECK(of_method(recorded->read(), call_side::client, "square").calls == 2);
  expect_error(errc::not_initialized, "", [&] { const metrics late((*group)[1]); });
  group.reset();
  const metrics_snapshot last = recorded->read();
  CHECK(of_method(last, call_side::client, "square").calls == 2);
  is_at_rest(of_method(last, call_side::client, "square"));
  CHECK(last.figures.empty());
  recorded.reset();
}

TEST_CASE("metrics come and go while calls run") {
  cluster group(2);
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop) (void)group[0].rpc_sync<square>("worker1", 1);
  });
  for (int i = 0; i != 50; ++i) {
    const metrics here(group[0]);
    const metrics there(group[1]);
    while (here.read().total(call_side::client).ended < 3) std::this_thread::yield();
    while (there.read().total(call_side::server).ended < 3) std::this_thread::yield();
  }
  stop = true;
  caller.join();
}

TEST_CASE("requests of methods that the callee does not serve are one series, whatever their names are") {
  cluster group(2, {.configure = [](ferry::worker_config& config) {
                  if (config.rank == 1) config.serve = ferry::serve_list<square>;
                }});
  const metrics recorded(group[1]);
  expect_error(errc::unknown_method, "", [&] { (void)group[0].rpc_sync<cube>("worker1", 1); });
  expect_error(errc::unknown_method, "", [&] { (void)group[0].rpc_sync<text_of>("worker1", 1); });
  const call_metrics row = recorded.read().total(call_side::server, "unknown", "worker0");
  CHECK(row.calls == 2);
  CHECK(row.ended == 2);
  CHECK(row.errors_of(errc::unknown_method) == 2);
}

}  // namespace metrics_test
