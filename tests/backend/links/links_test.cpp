// Links before, while and after their connection is open.

#include "backend/links/links.hpp"

#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/wire/serialize.hpp>

#include "allocation_count.hpp"
#include "expect_error.hpp"

namespace links_test {

namespace {

using namespace ferry;
using namespace std::chrono_literals;

struct owner final : detail::link_owner {
  explicit owner(const flow_limits& limits) : bounds(limits) {}
  detail::worker_flow bounds;
  std::int64_t sent = 0;
  void on_link_closed(void*) noexcept override {}
  int late_replies = 0;
  void count_late_reply() noexcept override { ++late_replies; }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> late;  // ids and methods
  void on_link_event(const link_event& event) noexcept override {
    if (event.what == link_event::kind::late_reply) late.emplace_back(event.call_id, event.method);
  }
  [[nodiscard]] bool closing() const noexcept override { return false; }
  [[nodiscard]] detail::worker_flow& flow() noexcept override { return bounds; }
  void count_sent(std::int64_t change) noexcept override { sent += change; }
  void count_handled(std::int64_t) noexcept override {}
  void run_later(work* item) noexcept override { item->run(item); }
  bool look_again = false;
  void look_again_soon() noexcept override { look_again = true; }
  void check_deadlines_at(deadline) noexcept override {}
};

struct recorder final : connection {
  std::vector<frame_header> frames;
  bool reads = true;  // whether the peer reads
  std::uint64_t unwritten = 0;
  mutable std::deque<std::uint64_t> seen;  // the first readers get these values instead
  std::uint64_t tell_at = 0;
  bool asked = false;
  bool paused = false;
  void pause_reading() noexcept override { paused = true; }
  void resume_reading() noexcept override { paused = false; }
  std::weak_ptr<connection_receiver> receiver;  // which has the connection; the creator of both keeps it alive
  void start(std::shared_ptr<connection_receiver> to) override { receiver = to; }
  bool holds_back = false;
  int watched = 0;
  bool send_with_next(outgoing_message&& message) noexcept override {
    send(std::move(message));
    return holds_back;
  }
  void keep_watched() noexcept override { ++watched; }
  void send(outgoing_message&& message) noexcept override {
    frames.push_back(frame_header::decode(message.bytes.data(), {}));
    if (!reads) unwritten += message.bytes.size() + message.header.tensor_bytes;
  }
  [[nodiscard]] std::uint64_t unwritten_bytes() const noexcept override {
    if (seen.empty()) return unwritten;
    const std::uint64_t before = seen.front();
    seen.pop_front();
    return before;
  }
  bool tell_when_written(std::uint64_t bytes) noexcept override {
    tell_at = bytes;
    return asked = unwritten > bytes;
  }
  void write(std::uint64_t bytes) {
    unwritten -= bytes;
    if (asked && unwritten <= tell_at) {
      asked = false;
      receiver.lock()->on_written(*this);
    }
  }
  void close(std::exception_ptr) noexcept override {}
  [[nodiscard]] std::string_view transport_name() const noexcept override { return "recorder"; }
  [[nodiscard]] std::string description() const override { return "recorder"; }
};

struct waiting_call final : pending_call {
  errc failed_with{};
  call_phase failed_in{};
  bool answered = false;
  void on_reply(inbound_message&&) noexcept override { answered = true; }
  void on_failure(errc code, call_phase phase, const std::string&) noexcept override {
    failed_with = code;
    failed_in = phase;
  }
};

outgoing_message request_with(std::chrono::microseconds timeout) {
  outgoing_message request;
  request.header.kind = frame_kind::request;
  request.header.flags = timeout.count() == 0 ? frame_no_deadline : 0;
  request.header.timeout_us = static_cast<std::uint64_t>(timeout.count());
  return request;
}

struct connecting {
  explicit connecting(const flow_limits& limits = {}) : owns(std::make_shared<owner>(limits)) {}
  std::shared_ptr<owner> owns;
  std::shared_ptr<detail::outgoing_link> link =
      std::make_shared<detail::outgoing_link>(owns, worker_info("peer", worker_id{1}));
  std::shared_ptr<recorder> wire = std::make_shared<recorder>();

  std::uint64_t call(waiting_call& call, std::chrono::microseconds timeout) {
    auto request = request_with(timeout);
    std::uint64_t id = 0;
    const deadline until = timeout.count() == 0 ? deadline() : deadline(clock::now() + timeout);
    const bool taken = link->call(request, call, until, ferry::reply_wait::none, id);
    REQUIRE(taken);
    return id;
  }
  void answer(std::uint64_t id) {
    inbound_message reply;
    reply.header.kind = frame_kind::reply;
    reply.header.call_id = id;
    link->on_message(*wire, std::move(reply));
  }
  [[nodiscard]] std::vector<std::uint64_t> sent_ids() const {
    std::vector<std::uint64_t> ids;
    for (const frame_header& each : wire->frames) ids.push_back(each.call_id);
    return ids;
  }
};

outgoing_message large_request(std::int64_t floats) {
  auto request = request_with(0us);
  encode_values<tensor>(request.bytes, request.tensors, ones({floats}));
  return request;
}

}  // namespace

TEST_CASE("a reply that comes after its call was given up is told with the method, while that is known") {
  constexpr std::size_t remembered = 64;
  connecting to;
  to.link->opened(to.wire);
  waiting_call call;
  std::vector<std::uint64_t> ids;
  for (std::uint64_t method = 1; method != remembered + 2; ++method) {
    auto request = request_with(0us);
    request.header.method = method;
    std::uint64_t id = 0;
    REQUIRE(to.link->call(request, call, deadline(), ferry::reply_wait::none, id));
    call_phase phase{};
    REQUIRE(to.link->abandon(id, phase, true));
    ids.push_back(id);
  }
  to.answer(ids.back());
  to.answer(ids[1]);
  to.answer(ids[0]);  // one too many was given up since
  CHECK(to.owns->late_replies == 3);
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> expected{
      {ids.back(), remembered + 1}, {ids[1], 2}, {ids[0], 0}};
  CHECK(to.owns->late == expected);
  CHECK_FALSE(call.answered);
}

TEST_CASE("the connection is watched by the sender of the call that follows one which was held back") {
  connecting to;
  to.link->opened(to.wire);
  waiting_call call;
  const auto send = [&](ferry::reply_wait how) {
    to.wire->watched = 0;
    auto request = request_with(0us);
    std::uint64_t id = 0;
    REQUIRE(to.link->call(request, call, deadline(), how, id));
    return to.wire->watched;
  };
  CHECK(send(ferry::reply_wait::bundled) == 1);
  to.wire->holds_back = true;
  CHECK(send(ferry::reply_wait::bundled) == 0);
  CHECK(send(ferry::reply_wait::none) == 1);
  CHECK(send(ferry::reply_wait::bundled) == 0);
  CHECK(send(ferry::reply_wait::unhurried) == 1);
  CHECK(send(ferry::reply_wait::unhurried) == 0);  // there is nothing that nothing watches for
  CHECK(send(ferry::reply_wait::bundled) == 0);
  CHECK(send(ferry::reply_wait::at_once) == 0);  // its sender reads the connection itself
  CHECK(send(ferry::reply_wait::bundled) == 0);
  to.wire->watched = 0;
  auto one_way = request_with(0us);
  one_way.header.flags |= ferry::frame_one_way;
  REQUIRE(to.link->notify(one_way));
  CHECK(to.wire->watched == 1);
}

TEST_CASE("the time spent waiting for the connection is subtracted from the timeout that the callee sees") {
  connecting to;
  waiting_call limited, unlimited;
  to.call(limited, 10s);
  to.call(unlimited, 0s);
  to.link->opened(to.wire);
  REQUIRE(to.wire->frames.size() == 2);
  CHECK(to.wire->frames[0].timeout_us < 10'000'000);
  CHECK(to.wire->frames[0].timeout_us > 0);
  CHECK((to.wire->frames[1].flags & frame_no_deadline) != 0);
  CHECK(to.wire->frames[1].timeout_us == 0);
}

TEST_CASE("a control frame that must not be lost waits for the connection; others are dropped") {
  connecting to;
  waiting_call first;
  to.call(first, 0s);
  to.link->send_control(detail::control_message(detail::control_code::heartbeat));
  to.link->send_control(detail::control_message(detail::control_code::fence), true);
  to.link->opened(to.wire);
  to.link->send_control(detail::control_message(detail::control_code::goodbye), true);
  REQUIRE(to.wire->frames.size() == 3);
  CHECK(to.wire->frames[0].code == static_cast<std::uint32_t>(detail::control_code::fence));
  CHECK(to.wire->frames[1].kind == frame_kind::request);
  CHECK(to.wire->frames[2].code == static_cast<std::uint32_t>(detail::control_code::goodbye));
}

TEST_CASE("a call that is given up before the connection is open is never sent") {
  connecting to;
  waiting_call kept, given_up, expired;
  const auto first = to.call(kept, 60s);
  const auto second = to.call(given_up, 60s);
  to.call(expired, 1us);
  CHECK(to.owns->sent == 3);
  call_phase phase = call_phase::waiting_for_reply;
  CHECK(to.link->abandon(second, phase, true));
  CHECK(phase == call_phase::connecting);
  to.link->expire(clock::now() + 1s);
  CHECK(expired.failed_with == errc::rpc_timeout);
  CHECK(to.owns->sent == 1);
  to.link->opened(to.wire);
  REQUIRE(to.wire->frames.size() == 1);
  CHECK(to.wire->frames[0].call_id == first);
}

TEST_CASE("a message for a device without a channel is refused with a reason, before and after the connection opens") {
  const auto for_a_device = [] {
    auto request = large_request(3);
    request.targets = {{device_kind::cuda, 0}};
    return request;
  };
  const auto refusal = [](auto&& action) {
    try {
      action();
    } catch (const error& e) {
      CHECK(e.kind() == errc::bad_device);
      return std::string(e.message());
    }
    return std::string("nothing");
  };
  connecting to;
  auto early = for_a_device();
  waiting_call waiting;
  std::uint64_t id = 0;
  CHECK(to.link->call(early, waiting, {}, ferry::reply_wait::none, id));
  to.link->opened(to.wire);
  CHECK(waiting.failed_with == errc::bad_device);
  CHECK(to.wire->frames.empty());
  CHECK(to.owns->sent == 0);
  auto late = for_a_device();
  const std::string text = refusal([&] { to.link->call(late, waiting, {}, ferry::reply_wait::none, id); });
  CHECK_MESSAGE(text.find("tensor 0 of the message is on cpu and is to arrive on cuda:0") != text.npos, text);
  CHECK_MESSAGE(text.find("its transport moves tensors from CPU to CPU only") != text.npos, text);
}

TEST_CASE("a one-way message with a tensor that is retried on a second link is intact") {
  connecting first, second;
  second.link->opened(second.wire);
  auto request = request_with(0us);
  request.header.flags |= frame_one_way;
  encode_values<tensor>(request.bytes, request.tensors, ones({2, 3}));
  const auto payload = request.bytes.size() - frame_header::encoded_size;
  request.finish();  // the first link accepted it, and was closed meanwhile
  first.link->fail(errc::connect_failed, "lost");
  REQUIRE_FALSE(first.link->notify(request));
  REQUIRE(second.link->notify(request));
  REQUIRE(second.wire->frames.size() == 1);
  CHECK(second.wire->frames[0].payload_bytes == payload);
  CHECK(second.wire->frames[0].tensor_count == 1);
}

TEST_CASE("the deleter of a tensor may use the link when its call is given up while connecting, or the link ends") {
  for (const bool link_ends : {false, true}) {
    connecting to;
    std::atomic<int> deleted{0};
    std::promise<void> ended;
    std::thread user([&] {
      waiting_call call;
      auto request = request_with(0us);
      float data[4] = {};
      {
        const auto t = from_blob(data, {4}, dtype::f32, [&](void*) {
          ++deleted;
          auto other = request_with(0us);
          other.header.flags |= frame_one_way;
          (void)to.link->notify(other);
        });
        encode_values<tensor>(request.bytes, request.tensors, t);
      }
      std::uint64_t id = 0;
      (void)to.link->call(request, call, {}, ferry::reply_wait::none, id);
      call_phase phase{};
      if (link_ends) {
        to.link->fail(errc::connect_failed, "no listener");
      } else {
        (void)to.link->abandon(id, phase, true);
      }
      ended.set_value();
    });
    const bool in_time = ended.get_future().wait_for(60s) == std::future_status::ready;
    if (!in_time) user.detach();
    REQUIRE(in_time);
    user.join();
    CHECK(deleted == 1);
  }
}

TEST_CASE("calls above the bound are sent in order as others end, with their remaining timeout") {
  connecting to({.calls_per_peer = 2});
  to.link->opened(to.wire);
  std::vector<waiting_call> calls(5);
  std::vector<std::uint64_t> ids;
  for (auto& each : calls) ids.push_back(to.call(each, 10s));
  CHECK(to.sent_ids() == std::vector{ids[0], ids[1]});
  CHECK(to.owns->bounds.queued_calls == 3);
  CHECK(to.link->expected_messages() == 2);
  to.answer(ids[1]);
  CHECK(to.sent_ids() == std::vector{ids[0], ids[1], ids[2]});
  CHECK(to.wire->frames[2].timeout_us < 10'000'000);
  call_phase phase{};
  CHECK(to.link->abandon(ids[3], phase, true));
  CHECK(phase == call_phase::queued);
  CHECK(to.wire->frames.size() == 3);  // the callee is not notified of calls that were never sent
  CHECK(to.link->abandon(ids[0], phase, true));
  CHECK(phase == call_phase::waiting_for_reply);
  REQUIRE(to.wire->frames.size() == 5);
  CHECK(to.wire->frames[3].kind == frame_kind::cancel);
  CHECK(to.wire->frames[4].call_id == ids[4]);
  to.answer(ids[2]);
  to.answer(ids[4]);
  CHECK(to.owns->bounds.queued_calls == 0);
  CHECK(to.owns->bounds.queued_bytes == 0);
  CHECK(to.link->expected_messages() == 0);
  CHECK(to.owns->sent == 4);
}

TEST_CASE("the queue is bounded, too, while connecting and afterwards, and one-way messages queue with the calls") {
  for (const bool open : {false, true}) {
    connecting to({.calls_per_peer = 1, .queued_calls_per_peer = 2});
    std::vector<waiting_call> calls(3);
    if (open) {
      to.link->opened(to.wire);
      to.call(calls[0], 0s);
    }
    to.call(calls[1], 0s);
    auto one_way = request_with(0us);
    one_way.header.flags |= frame_one_way;
    CHECK(to.link->notify(one_way));
    expect_error(errc::resource_exhausted, "flow.queued_calls_per_peer = 2", [&] { to.call(calls[2], 0s); });
    auto another = request_with(0us);
    another.header.flags |= frame_one_way;
    expect_error(errc::resource_exhausted, "name=peer", [&] { (void)to.link->notify(another); });
    CHECK(to.owns->sent == (open ? 3 : 2));
    if (!open) to.link->opened(to.wire);
    to.answer(calls[0].call_id);
    CHECK(to.wire->frames.size() == (open ? 3 : 2));
    CHECK((to.wire->frames.back().flags & frame_one_way) != 0);
  }
}

TEST_CASE("unread bytes hold further calls back, a large message passes alone") {
  connecting to({.bytes_per_peer = 4096, .queued_bytes_per_peer = 16384});
  to.link->opened(to.wire);
  to.wire->reads = false;
  std::vector<waiting_call> calls(8);
  std::uint64_t id = 0;
  const auto send = [&](waiting_call& call, std::int64_t floats) {
    auto request = large_request(floats);
    const bool taken = to.link->call(request, call, {}, ferry::reply_wait::none, id);
    REQUIRE(taken);
  };
  send(calls[0], 100'000);
  CHECK(to.wire->frames.size() == 1);
  for (int i = 1; i != 4; ++i) send(calls[static_cast<std::size_t>(i)], 500);
  send(calls[4], 1500);
  CHECK(to.wire->frames.size() == 1);
  expect_error(errc::resource_exhausted, "flow.queued_bytes_per_peer = 16384", [&] { send(calls[5], 2000); });
  to.wire->write(to.wire->unwritten);
  CHECK(to.wire->frames.size() == 2);  // a second one would exceed the bound
  to.wire->write(to.wire->unwritten);
  CHECK(to.wire->frames.size() == 3);
  to.wire->write(to.wire->unwritten);
  to.wire->write(to.wire->unwritten);
  CHECK(to.wire->frames.size() == 5);  // the large one was sent when nothing else was under way
  to.wire->write(to.wire->unwritten);
  CHECK(to.owns->bounds.queued_bytes == 0);
}

TEST_CASE("messages queued while the last bytes are written are sent at once: no later event would report room") {
  connecting to({.bytes_per_peer = 4096});
  to.link->opened(to.wire);
  to.wire->reads = false;
  std::size_t frames = 0;
  std::vector<waiting_call> calls(2);
  const auto send = [&](bool one_way, std::size_t which) {
    auto request = large_request(2000);
    std::uint64_t id = 0;
    if (one_way) request.header.flags |= frame_one_way;
    CHECK((one_way ? to.link->notify(request) : to.link->call(request, calls[which], {}, ferry::reply_wait::none, id)));
  };
  for (const bool one_way : {true, false}) {
    CAPTURE(one_way);
    send(one_way, 0);
    CHECK(to.wire->frames.size() == ++frames);
    to.wire->seen = {std::exchange(to.wire->unwritten, 0)};
    send(one_way, 1);
    CHECK(to.wire->frames.size() == ++frames);
    to.wire->write(to.wire->unwritten);
    // Another thread sends meanwhile what it was allowed to before.
    to.wire->unwritten = 8000;
    to.wire->seen = {8000, 0, 8000};
    send(one_way, 0);
    CHECK(to.wire->frames.size() == frames);
    CHECK(to.wire->asked);
    to.wire->write(8000);
    CHECK(to.wire->frames.size() == ++frames);
    to.wire->write(to.wire->unwritten);
  }
  // One of several waiting messages is sent, and its bytes are written before the next one is.
  for (int i = 0; i != 3; ++i) send(true, 0);
  CHECK(to.wire->frames.size() == ++frames);
  to.wire->seen = {std::exchange(to.wire->unwritten, 0)};
  to.link->on_written(*to.wire);
  CHECK(to.wire->frames.size() == ++frames);
}

TEST_CASE("peers that do not read use up the bound of the worker, except for the share of each other peer") {
  connecting first({.bytes_per_worker = 1});
  connecting second;
  second.owns = first.owns;
  second.link = std::make_shared<detail::outgoing_link>(second.owns, worker_info("other", worker_id{2}));
  for (connecting* each : {&first, &second}) {
    each->link->opened(each->wire);
    each->wire->reads = false;
  }
  constexpr std::int64_t floats = flow_limits::fair_bytes / sizeof(float);
  std::vector<waiting_call> calls(6);
  std::uint64_t id = 0;
  const auto send = [&](connecting& over, waiting_call& call, std::int64_t size) {
    auto request = large_request(size);
    const bool taken = over.link->call(request, call, {}, ferry::reply_wait::none, id);
    REQUIRE(taken);
  };
  send(first, calls[0], 2 * floats);
  send(first, calls[1], 1);
  CHECK(first.wire->frames.size() == 1);
  send(second, calls[2], floats / 2);
  send(second, calls[3], floats / 4);
  CHECK(second.wire->frames.size() == 2);
  send(second, calls[4], floats / 2);
  CHECK(second.wire->frames.size() == 2);
  CHECK(first.owns->bounds.requests.bytes() == first.wire->unwritten + second.wire->unwritten);
  second.wire->write(second.wire->unwritten);
  CHECK(second.wire->frames.size() == 3);
  for (connecting* each : {&first, &second})
    each->link->on_closed(*each->wire, make_error(errc::connection_lost, "lost"));
  CHECK(first.owns->bounds.requests.bytes() == 0);
}

TEST_CASE("when a link ends, queued calls end with it, and their errors say so") {
  connecting to({.calls_per_peer = 1});
  to.link->opened(to.wire);
  std::vector<waiting_call> calls(3);
  for (auto& each : calls) to.call(each, 0s);
  to.link->on_closed(*to.wire, make_error(errc::connection_lost, "lost"));
  for (const auto& each : calls) CHECK(each.failed_with == errc::peer_lost);
  CHECK(calls[0].failed_in == call_phase::waiting_for_reply);
  CHECK(calls[1].failed_in == call_phase::queued);
  CHECK(to.owns->bounds.queued_calls == 0);
  CHECK(to.owns->sent == 0);
}

namespace {

struct posted_work final : executor {
  std::vector<work*> items;
  void post(work* item) noexcept override { items.push_back(item); }
};

struct accepting final : request_handler {
  int requests = 0;
  void on_request(const std::shared_ptr<reply_channel>&, const worker_info&, inbound_message&&) noexcept override {
    ++requests;
  }
  [[nodiscard]] bool busy() const noexcept override { return false; }
};

struct accepted {
  explicit accepted(const flow_limits& limits) : owns(std::make_shared<owner>(limits)) { link->start(); }
  std::shared_ptr<owner> owns;
  accepting handler;
  std::shared_ptr<recorder> wire = std::make_shared<recorder>();
  std::shared_ptr<detail::incoming_link> link =
      std::make_shared<detail::incoming_link>(owns, worker_info("peer", worker_id{1}), handler, wire);

  void request(std::uint64_t bytes) {
    inbound_message message;
    message.header.payload_bytes = bytes - frame_header::encoded_size;
    link->on_message(*wire, std::move(message));
  }
};

}  // namespace

TEST_CASE("reading pauses at the bound on requests, and resumes when half of them are answered") {
  accepted from({.served_calls_per_peer = 4});
  for (int i = 0; i != 3; ++i) from.request(100);
  CHECK_FALSE(from.wire->paused);
  from.request(100);
  CHECK(from.wire->paused);
  CHECK(from.owns->bounds.paused_links == 1);
  from.link->handled(100);
  from.link->handled(100);
  CHECK(from.wire->paused);
  from.link->handled(100);
  CHECK_FALSE(from.wire->paused);
  CHECK(from.link->served_now().calls == 1);
  CHECK(from.link->served_now().bytes == 100);
}

TEST_CASE("a request that is larger than the bound is read, and nothing after it until it is answered") {
  accepted from({.served_bytes_per_peer = 1000});
  from.request(100);
  from.request(5000);
  CHECK(from.wire->paused);
  from.link->handled(100);
  CHECK(from.wire->paused);
  from.link->handled(5000);
  CHECK_FALSE(from.wire->paused);
  from.link->on_closed(*from.wire, make_error(errc::connection_lost, "lost"));
}

TEST_CASE("what a caller sent is dropped if it ends its connection while nothing is read from it") {
  accepted from({.served_calls_per_peer = 2});
  for (int i = 0; i != 2; ++i) from.request(100);
  CHECK(from.wire->paused);
  from.link->on_ended_while_paused(*from.wire);
  for (int i = 0; i != 3; ++i) from.request(100);
  CHECK(from.link->served_now().calls == 2);
  from.link->on_closed(*from.wire, make_error(errc::connection_lost, "lost"));
  CHECK(from.owns->bounds.paused_links == 0);
}

TEST_CASE("calls for which a caller used one id all end with its connection") {
  struct served final : stoppable {
    int stopped = 0;
    void add_reference() noexcept override {}
    void drop_reference() noexcept override {}
    void mark_stopped() noexcept override {}
    void request_stop() noexcept override { ++stopped; }
  };
  for (const std::uint64_t id : {std::uint64_t{7}, std::uint64_t{1} << 40U | 77777}) {  // by slot, and not
    accepted from({});
    std::vector<served> calls(5);
    for (served& each : calls) from.link->begin_call(id, each);
    from.link->end_call(id, calls[1]);
    from.link->end_call(id, calls[3]);
    from.link->on_closed(*from.wire, make_error(errc::connection_lost, "lost"));
    for (std::size_t i = 0; i != calls.size(); ++i) CHECK(calls[i].stopped == (i % 2 == 0 ? 1 : 0));
  }
}

TEST_CASE("calls are stopped without memory when they are cancelled or their connection ends" *
          doctest::skip(!ferry_test::counts_allocations)) {
  struct served final : stoppable {
    int marked = 0;
    int stopped = 0;
    int references = 0;
    void add_reference() noexcept override { ++references; }
    void drop_reference() noexcept override { --references; }
    void mark_stopped() noexcept override { ++marked; }
    void request_stop() noexcept override { ++stopped; }
  };
  for (const std::uint64_t id : {std::uint64_t{7}, std::uint64_t{1} << 40U | 77777}) {  // by slot, and not
    accepted from({});
    std::vector<served> calls(3);
    for (std::size_t i = 0; i != calls.size(); ++i) from.link->begin_call(id + i, calls[i]);
    const auto lost = make_error(errc::connection_lost, "lost");
    ferry_test::fail_allocation(1);
    from.link->cancel(id + 1);
    from.link->cancel(id + 1);
    CHECK_FALSE(ferry_test::allocation_failed());
    CHECK(calls[1].stopped == 1);
    ferry_test::fail_allocation(1);  // the event for diagnostic records needs memory, after the calls were stopped
    from.link->on_closed(*from.wire, lost);
    (void)ferry_test::allocation_failed();
    for (const served& each : calls) {
      CHECK(each.marked == 1);
      CHECK(each.stopped == 1);
      CHECK(each.references == 0);
    }
  }
}

TEST_CASE("load from other callers pauses a caller only above its share") {
  accepted from({.served_calls_per_worker = 1});
  from.owns->bounds.served.calls = 1;
  for (std::uint64_t i = 0; i != flow_limits::fair_calls; ++i) from.request(100);
  CHECK_FALSE(from.wire->paused);
  from.request(100);
  CHECK(from.wire->paused);
  for (std::uint64_t i = 0; i != flow_limits::fair_calls; ++i) from.link->handled(100);
  CHECK_FALSE(from.wire->paused);
  from.link->handled(100);
  CHECK(from.owns->bounds.served.calls == 1);
  CHECK(from.owns->bounds.served.bytes == 0);
}

TEST_CASE("a link that waits for capacity of other links polls until there is room") {
  constexpr std::uint64_t share = flow_limits::fair_calls;
  accepted from({.served_calls_per_worker = share + 4});
  from.owns->bounds.served.calls = 2 * share;  // of other links
  for (std::uint64_t i = 0; i != share + 1; ++i) from.request(100);
  CHECK(from.wire->paused);
  CHECK(std::exchange(from.owns->look_again, false));
  from.link->look_again();
  CHECK(from.wire->paused);
  CHECK(std::exchange(from.owns->look_again, false));
  from.owns->bounds.served.calls = 0;
  from.link->look_again();
  CHECK_FALSE(from.wire->paused);
  CHECK_FALSE(from.owns->look_again);

  connecting to({.calls_per_worker = share + 1});
  to.link->opened(to.wire);
  to.owns->bounds.active_calls = share + 2;  // and calls to other peers
  std::vector<waiting_call> calls(share + 1);
  for (auto& each : calls) to.call(each, 0s);
  CHECK(to.wire->frames.size() == share);
  CHECK(std::exchange(to.owns->look_again, false));
  to.link->look_again();
  CHECK(to.wire->frames.size() == share);
  CHECK(std::exchange(to.owns->look_again, false));
  to.owns->bounds.active_calls = share;
  to.link->look_again();
  CHECK(to.wire->frames.size() == share + 1);
  CHECK_FALSE(to.owns->look_again);
}

TEST_CASE("handlers wait while answers are unwritten, and begin when these are written or the connection is lost") {
  for (const bool lost : {false, true}) {
    accepted from({.bytes_per_peer = 1000});
    posted_work pool;
    work items[2];
    CHECK(from.link->may_begin(items[0], pool));
    from.wire->reads = false;
    from.wire->unwritten = 1200;
    CHECK_FALSE(from.link->may_begin(items[0], pool));
    CHECK_FALSE(from.link->may_begin(items[1], pool));
    CHECK(from.owns->bounds.held_handlers == 2);
    CHECK(pool.items.empty());
    if (lost) {
      from.link->on_closed(*from.wire, make_error(errc::connection_lost, "lost"));
    } else {
      from.wire->write(600);
    }
    CHECK(pool.items.size() == 2);
    CHECK(from.owns->bounds.held_handlers == 0);
    CHECK(from.link->may_begin(items[0], pool));
  }
}

}  // namespace links_test
