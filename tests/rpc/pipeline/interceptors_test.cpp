// Interceptors: their registration, what they may decide, and what they see when something goes wrong.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"

namespace interceptors_test {

using ferry::errc;
using ferry::interceptor;
using ferry_test::captured_log;
using ferry_test::cluster;
using namespace std::chrono_literals;

inline constexpr ferry::context_key<std::string> tenant("tenant");

std::string tenant_here() {
  const std::string* name = ferry::current_value(tenant);
  return name ? *name : "none";
}
ferry::task<std::string> tenant_later() {
  (void)co_await ferry::rpc_async<tenant_here>(ferry::get_worker_info().id());
  co_return tenant_here();
}
int plus_one(int x) { return x + 1; }
void nothing() {}
int fail() { throw std::domain_error("it failed"); }
ferry_test::gate ran;
void pass() { ran.arrive(); }

// Each point calls a function, if it is set.
struct points {
  std::function<void(ferry::outgoing_request&)> on_request = {};
  std::function<void()> sent = {};
  std::function<void()> not_sent = {};
  std::function<void(ferry::incoming_reply&)> replied = {};
  std::function<void(const ferry::call_end&)> call_ended = {};
  std::function<void(ferry::incoming_request&)> on_arrival = {};
  std::function<void(ferry::handler_start&)> before_handler = {};
  std::function<void(ferry::handler_result&)> handler_ended = {};
  std::function<void(ferry::outgoing_request&)> nested = {};
  std::function<void(ferry::outgoing_reply&)> on_reply = {};
  std::function<void()> request_ended = {};
  std::function<void()> stopped = {};
};

class probe final : public interceptor {
 public:
  probe(std::string name, points what) : name_(std::move(name)), points_(std::make_shared<points>(std::move(what))) {}
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  std::unique_ptr<ferry::caller_hooks> on_request(ferry::outgoing_request& request) override {
    if (points_->on_request) points_->on_request(request);
    struct hooks final : ferry::caller_hooks {
      explicit hooks(std::shared_ptr<points> to) : to_(std::move(to)) {}
      void sent() noexcept override { call(to_->sent); }
      void not_sent() noexcept override { call(to_->not_sent); }
      void replied(ferry::incoming_reply& reply) override { call(to_->replied, reply); }
      void ended(const ferry::call_end& how) noexcept override { call(to_->call_ended, how); }
      const std::shared_ptr<points> to_;
    };
    return std::make_unique<hooks>(points_);
  }
  std::unique_ptr<ferry::callee_hooks> on_arrival(ferry::incoming_request& request) override {
    if (points_->on_arrival) points_->on_arrival(request);
    struct hooks final : ferry::callee_hooks {
      explicit hooks(std::shared_ptr<points> to) : to_(std::move(to)) {}
      void before_handler(ferry::handler_start& start) override { call(to_->before_handler, start); }
      void on_nested_request(ferry::outgoing_request& request) override { call(to_->nested, request); }
      void handler_ended(ferry::handler_result& result) override { call(to_->handler_ended, result); }
      void on_reply(ferry::outgoing_reply& reply) override { call(to_->on_reply, reply); }
      void ended() noexcept override { call(to_->request_ended); }
      void stopped() noexcept override { call(to_->stopped); }
      const std::shared_ptr<points> to_;
    };
    return std::make_unique<hooks>(points_);
  }

 private:
  template <class F, class... A>
  static void call(const F& function, A&... arguments) {
    if (function) function(arguments...);
  }
  const std::string name_;
  const std::shared_ptr<points> points_;
};

class reader final : public interceptor {
 public:
  reader(std::string name, std::vector<std::uint16_t> types) : name_(std::move(name)), types_(std::move(types)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] std::span<const std::uint16_t> record_types() const noexcept override { return types_; }

 private:
  const std::string name_;
  const std::vector<std::uint16_t> types_;
};

struct refused final : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace interceptors_test

template <>
struct ferry::exception_traits<interceptors_test::refused> {
  static constexpr std::string_view name = "interceptors_test::refused";
  static std::string encode(const interceptors_test::refused&) { return {}; }
  static interceptors_test::refused decode(std::string_view what, std::string_view) {
    return interceptors_test::refused(std::string(what));
  }
};

namespace interceptors_test {

namespace {

// Interceptors of one worker of a group, by name.
ferry_test::cluster_options with(std::string who, std::vector<std::shared_ptr<interceptor>> list) {
  ferry_test::cluster_options options;
  options.configure = [who = std::move(who), list = std::move(list)](ferry::worker_config& config) {
    if (config.name == who) config.interceptors = list;
  };
  return options;
}
std::shared_ptr<interceptor> make_probe(points what, std::string name = "probe") {
  return std::make_shared<probe>(std::move(name), std::move(what));
}

void refuse_start(std::string_view text, std::vector<std::shared_ptr<interceptor>> list) {
  expect_error(errc::invalid_argument, text, [&] {
    (void)ferry::init_rpc(
        {.name = "lone", .rank = 0, .world_size = 1, .init_method = "tcp://127.0.0.1:0", .interceptors = list});
  });
}

}  // namespace

TEST_CASE("interceptors that cannot work together are refused when their worker starts") {
  refuse_start("null pointer", {nullptr});
  refuse_start("a name of 1 to 127 characters", {std::make_shared<reader>("", std::vector<std::uint16_t>{})});
  refuse_start("a name of 1 to 127 characters",
               {std::make_shared<reader>(std::string(128, 'x'), std::vector<std::uint16_t>{})});
  refuse_start("two interceptors named 'same'", {make_probe({}, "same"), make_probe({}, "same")});
  refuse_start("types below 1024 are the library's",
               {std::make_shared<reader>("thief", std::vector<std::uint16_t>{2})});
  refuse_start("'one' and 'two' both read extension records of type 40000",
               {std::make_shared<reader>("one", std::vector<std::uint16_t>{40000}),
                std::make_shared<reader>("two", std::vector<std::uint16_t>{40000})});
}

TEST_CASE("interceptors see requests in their order, and answers in the reverse one") {
  std::mutex mutex;
  std::string order;
  const auto note = [&](const char* what) {
    return [&, what](auto&) {
      const std::lock_guard lock(mutex);
      order += what;
    };
  };
  points first{.on_request = note("1r "),
               .replied = note("1d "),
               .on_arrival = note("1a "),
               .before_handler = note("1b "),
               .handler_ended = note("1e "),
               .on_reply = note("1p ")};
  points second{.on_request = note("2r "),
                .replied = note("2d "),
                .on_arrival = note("2a "),
                .before_handler = note("2b "),
                .handler_ended = note("2e "),
                .on_reply = note("2p ")};
  cluster group(2, with("worker0", {make_probe(first, "first"), make_probe(second, "second")}));
  CHECK(group[0].rpc_sync<plus_one>("worker0", 1) == 2);
  const std::lock_guard lock(mutex);
  CHECK(order == "1r 2r 1a 2a 1b 2b 2e 1e 2p 1p 2d 1d ");
}

TEST_CASE("an interceptor refuses requests, with its own exception or an error") {
  captured_log log;
  ferry::register_exceptions<refused>();
  std::atomic<int> results{0};
  points what;
  SUBCASE("before the handler, with an exception that keeps its type") {
    what.before_handler = [](ferry::handler_start& start) {
      if (start.method().find("plus_one") != std::string_view::npos)
        throw refused("not " + std::string(start.method()));
    };
    what.handler_ended = [&](ferry::handler_result& result) {
      ++results;
      if (result.error()) CHECK_FALSE(result.ran());
    };
    cluster group(2, with("worker1", {make_probe(what)}));
    CHECK_THROWS_WITH_AS((void)group[0].rpc_sync<plus_one>("worker1", 1), "not interceptors_test::plus_one", refused);
    CHECK_THROWS_AS((void)group[0].rpc_async<plus_one>("worker1", 1).get(), refused);
    CHECK_NOTHROW(group[0].rpc_sync<nothing>("worker1"));
    CHECK(results == 3);
  }
  SUBCASE("on arrival, with an error whose kind the caller gets") {
    what.on_arrival = [](ferry::incoming_request& request) {
      if (!request.method().empty()) ferry::throw_error(errc::resource_exhausted, "the quota is used up");
    };
    cluster group(2, with("worker1", {make_probe(what)}));
    expect_error(errc::resource_exhausted, "the quota is used up",
                 [&] { (void)group[0].rpc_sync<plus_one>("worker1", 1); });
  }
  SUBCASE("at the caller: nothing is sent") {
    std::atomic<int> undone{0};
    points before{.not_sent = [&] { ++undone; }};
    what.on_request = [](ferry::outgoing_request&) { throw refused("not from here"); };
    cluster group(2, with("worker0", {make_probe(before, "before"), make_probe(what)}));
    CHECK_THROWS_AS((void)group[0].rpc_sync<plus_one>("worker1", 1), refused);
    CHECK_THROWS_AS((void)group[0].rpc_async<plus_one>("worker1", 1), refused);
    CHECK_THROWS_AS(group[0].notify<nothing>("worker1"), refused);
    CHECK(undone == 3);
  }
  SUBCASE("the reply") {
    what.replied = [](ferry::incoming_reply&) { throw refused("not this reply"); };
    cluster group(2, with("worker0", {make_probe(what)}));
    CHECK_THROWS_AS((void)group[0].rpc_sync<plus_one>("worker1", 1), refused);
    CHECK_THROWS_AS((void)group[0].rpc_async<plus_one>("worker1", 1).get(), refused);
  }
  SUBCASE("the answer: the caller is told, whatever the method returned") {
    std::atomic<bool> once{true};
    what.on_reply = [&](ferry::outgoing_reply& reply) {
      if (reply.has_value() && once.exchange(false)) throw std::runtime_error("not this answer");
    };
    cluster group(2, with("worker1", {make_probe(what)}));
    CHECK_THROWS_WITH_AS((void)group[0].rpc_sync<plus_one>("worker1", 1), "not this answer", std::runtime_error);
    CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
  }
}

TEST_CASE("an interceptor replaces the exception of a method") {
  captured_log log;
  ferry::register_exceptions<refused>();
  points what{.handler_ended = [](ferry::handler_result& result) {
    if (result.error()) result.replace_error(std::make_exception_ptr(refused("nothing to see")));
  }};
  cluster group(2, with("worker1", {make_probe(what)}));
  CHECK_THROWS_WITH_AS((void)group[0].rpc_sync<fail>("worker1"), "nothing to see", refused);
}

TEST_CASE("a handler, its coroutine and its calls have the values that interceptors gave it") {
  points what{.before_handler = [](ferry::handler_start& start) { start.set_value(tenant, "red"); }};
  cluster group(2, with("worker1", {make_probe(what)}));
  CHECK(group[0].rpc_sync<tenant_here>("worker1") == "red");
  CHECK(group[0].rpc_sync<tenant_later>("worker1") == "red");
  CHECK(tenant_here() == "none");
}

TEST_CASE("an interceptor holds a request back, and lets it begin on another thread") {
  std::mutex mutex;
  std::vector<ferry::request_hold> held;
  points what{.on_arrival = [&](ferry::incoming_request& request) {
    if (request.method().find("pass") == std::string_view::npos) return;
    const std::lock_guard lock(mutex);
    held.push_back(request.hold());
  }};
  cluster group(2, with("worker1", {make_probe(what)}));
  ran.reset();
  const auto call = group[0].rpc_async<pass>("worker1");
  const auto waits = [&] {
    const auto served = group[1].served_calls();
    return served.size() == 1 && served.front().phase == ferry::served_phase::held;
  };
  while (!waits()) std::this_thread::yield();
  CHECK(ran.arrived() == 0);
  {
    const std::lock_guard lock(mutex);
    held.clear();
  }
  call.get();
  CHECK(ran.arrived() == 1);
}

TEST_CASE("hooks that hold a request are told once that its caller gave it up") {
  captured_log log;
  std::mutex mutex;
  std::vector<ferry::request_hold> held;
  std::atomic<int> stops{0};
  std::atomic<int> ends{0};
  points what{.on_arrival =
                  [&](ferry::incoming_request& request) {
                    if (request.method().find("pass") == std::string_view::npos) return;
                    const std::lock_guard lock(mutex);
                    held.push_back(request.hold());
                  },
              .request_ended = [&] { ++ends; },
              .stopped =
                  [&] {
                    ++stops;
                    const std::lock_guard lock(mutex);
                    held.clear();
                  }};
  cluster group(2, with("worker1", {make_probe(what)}));
  const auto call = group[0].rpc_async<pass>("worker1");
  while (group[1].served_calls().empty()) std::this_thread::yield();
  call.cancel();
  expect_error(errc::call_cancelled, "", [&] { call.get(); });
  while (ends != 1) std::this_thread::yield();
  CHECK(stops == 1);
}

TEST_CASE("calls of a handler are shown to the hooks of its own call") {
  std::mutex mutex;
  std::vector<std::string> nested;
  points what{.nested = [&](ferry::outgoing_request& request) {
    const std::lock_guard lock(mutex);
    nested.push_back(std::string(request.method()) + (request.blocks_handler() ? " blocks" : ""));
  }};
  cluster group(2, with("worker1", {make_probe(what)}));
  CHECK(group[0].rpc_sync<tenant_later>("worker1") == "none");
  const std::lock_guard lock(mutex);
  REQUIRE(nested.size() == 1);
  CHECK(nested.front().starts_with("interceptors_test::tenant_here"));
  CHECK_FALSE(nested.front().ends_with("blocks"));
}

int inner(int x) { return x; }
struct actor {
  int value = 0;
  int step() { return ++value; }
  // Calls another worker, where its own hooks call back.
  int out() {
    const int before = ferry::rpc_sync<inner>("worker0", 1);
    return before + ++value;
  }
};

struct gated {
  int value = 0;
  int stay() {
    ran.pass();
    return ++value;
  }
  int step() { return ++value; }
};

// Keeps the future of a call that it has made itself.
struct keeper {
  static inline std::atomic<int> alive{0};
  keeper() { ++alive; }
  keeper(const keeper&) = delete;
  keeper& operator=(const keeper&) = delete;
  ~keeper() { --alive; }
  void ask() {
    kept = ferry::rpc_async<inner>("worker0", 5);
    kept.wait();
  }
  ferry::future<int> kept;
};

}  // namespace interceptors_test

template <>
struct ferry::object_traits<interceptors_test::gated> {
  static constexpr auto execution = ferry::execution::exclusive;
};
template <>
struct ferry::object_traits<interceptors_test::actor> {
  static constexpr auto execution = ferry::execution::exclusive;
  static constexpr bool reentrant = true;
};

namespace interceptors_test {

TEST_CASE("hooks that see a reply may make calls, also for a handler that has the turn at an object") {
  points what{.replied = [](ferry::incoming_reply& reply) {
    if (reply.method().find("inner") != std::string_view::npos) (void)ferry::rpc_sync<plus_one>("worker0", 1);
  }};
  cluster group(2, with("worker1", {make_probe(what)}));
  const auto object = group[0].remote<ferry::make<actor>>("worker1");
  std::vector<ferry::future<int>> calls;
  for (int i = 0; i != 8; ++i) calls.push_back(object.rpc_async<&actor::out>());
  for (const auto& each : calls) CHECK(each.get() > 1);
  CHECK(object.rpc_sync<&actor::step>() == 9);
}

TEST_CASE("a future that is kept keeps neither hooks nor the context in which its call was made") {
  cluster group(2, with("worker1", {make_probe({})}));
  {
    const auto object = group[0].remote<ferry::make<keeper>>("worker1");
    object.rpc_sync<&keeper::ask>();
    CHECK(keeper::alive == 1);
  }
  while (keeper::alive != 0) std::this_thread::yield();
}

TEST_CASE("interceptors do not see the messages by which workers count references") {
  captured_log log;
  std::atomic<int> seen{0};
  points what{.on_arrival = [&](ferry::incoming_request& request) {
    if (request.method().find("ferry/references") != std::string_view::npos) ++seen;
  }};
  cluster group(2, with("worker1", {make_probe(what)}));
  {
    const auto object = group[0].remote<ferry::make<actor>>("worker1");
    CHECK(object.rpc_sync<&actor::step>() == 1);
  }
  while (group[1].debug_info("num_owner_rrefs") != "0") std::this_thread::yield();
  CHECK(seen == 0);
}

TEST_CASE("a request that an interceptor refuses does not wait for its turn") {
  captured_log log;
  std::atomic<bool> refuse{false};
  points what{.on_arrival = [&](ferry::incoming_request& request) {
    if (refuse && request.method().find("step") != std::string_view::npos)
      ferry::throw_error(errc::resource_exhausted, "not now");
  }};
  cluster group(2, with("worker1", {make_probe(what)}));
  ran.reset();
  const auto object = group[0].remote<ferry::make<gated>>("worker1");
  const auto holder = object.rpc_async<&gated::stay>();
  ran.await_arrivals(1);
  refuse = true;
  expect_error(errc::resource_exhausted, "not now", [&] { (void)object.rpc_sync<&gated::step>(); });
  ran.open();
  CHECK(holder.get() == 1);
}

TEST_CASE("hooks that throw: the others are told, and the caller gets the error") {
  captured_log log;
  std::atomic<int> told_of_results{0};
  std::atomic<int> replies{0};
  points quiet{.handler_ended = [&](ferry::handler_result&) { ++told_of_results; },
               .on_reply = [&](ferry::outgoing_reply&) { ++replies; }};
  SUBCASE("of a result") {
    points loud{
        .handler_ended = [](ferry::handler_result&) { ferry::throw_error(errc::resource_exhausted, "no more"); }};
    cluster group(2, with("worker1", {make_probe(quiet, "quiet"), make_probe(loud, "loud")}));
    expect_error(errc::resource_exhausted, "no more", [&] { (void)group[0].rpc_sync<plus_one>("worker1", 1); });
    expect_error(errc::resource_exhausted, "no more", [&] { (void)group[0].rpc_sync<fail>("worker1"); });
    CHECK(log.has("it failed"));
    CHECK(told_of_results == 2);
  }
  SUBCASE("of an answer") {
    points loud{.on_reply = [](ferry::outgoing_reply&) { ferry::throw_error(errc::resource_exhausted, "no more"); }};
    cluster group(2, with("worker1", {make_probe(quiet, "quiet"), make_probe(loud, "loud")}));
    expect_error(errc::resource_exhausted, "no more", [&] { (void)group[0].rpc_sync<plus_one>("worker1", 1); });
    expect_error(errc::resource_exhausted, "no more", [&] { (void)group[0].rpc_sync<fail>("worker1"); });
    CHECK(replies == 2);
  }
}

// ---------------------------------------------------------------- attachments

namespace {

std::mutex story_mutex;
std::string story;
void tell(const std::string& what) {
  const std::lock_guard lock(story_mutex);
  story += what + " ";
}

template <char Name>
struct part final : ferry::worker_attachment {
  explicit part(const ferry::attachment_owner& owner) { tell(std::string("made") + Name + "@" + owner.info().name()); }
  ~part() override { tell(std::string("gone") + Name); }
  void close() noexcept override { tell(std::string("close") + Name); }
  void clear(bool idle) noexcept override { tell(std::string(idle ? "clear" : "busy") + Name); }
};
inline constexpr ferry::attached_key<part<'a'>> key_a("a");
inline constexpr ferry::attached_key<part<'b'>> key_b("b");

struct failing final : ferry::worker_attachment {
  failing() { throw std::runtime_error("no"); }
};
inline constexpr ferry::attached_key<failing> key_failing("failing");

}  // namespace

TEST_CASE("attachments are made once, and end in the reverse order") {
  {
    const std::lock_guard lock(story_mutex);
    story.clear();
  }
  ferry::worker self =
      ferry::init_rpc({.name = "lone", .rank = 0, .world_size = 1, .init_method = "tcp://127.0.0.1:0"});
  CHECK(ferry::attached(key_a, self) == ferry::attached(key_a, self));
  CHECK(ferry::attached(key_a) == ferry::attached(key_a, self));
  CHECK_THROWS_AS((void)ferry::attached(key_failing, self), std::runtime_error);
  (void)ferry::attached(key_b, self);
  self.shutdown();
  const std::lock_guard lock(story_mutex);
  CHECK(story == "madea@lone madeb@lone closeb closea clearb goneb cleara gonea ");
  expect_error(errc::not_initialized, "'a' cannot be attached to it", [&] { (void)ferry::attached(key_a, self); });
}

}  // namespace interceptors_test
