// What a session records: calls, what they do at their callees, ranges, operations.

#include <algorithm>
#include <cstdint>
#include <future>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/profiler.hpp>
#include <ferry/rpc/interceptor.hpp>
#include <ferry/tensor/factories.hpp>

#include "await_calls.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "profiler/profile_batch.hpp"
#include "profiler/recording.hpp"

namespace profiler_test {

namespace profiler = ferry::profiler;
using ferry::errc;
using ferry::range_kind;
using ferry::tensor;
using ferry_test::cluster;
using profiler::event;
using profiler::profile;

tensor product(const tensor& a, const tensor& b) { return ferry::matmul(a, b) + a; }
tensor in_range(const tensor& a, const tensor& b) {
  const profiler::range part("my range");
  return ferry::matmul(a, b) + a;
}
int square(int x) { return x * x; }
int pass_on(int x, const std::string& next) {
  const profiler::range part("pass on");
  return ferry::rpc_sync<square>(next, x) + 1;
}
tensor fails_after_work(const tensor& a) {
  (void)(a + a);
  throw std::runtime_error("there was no more");
}
ferry::task<tensor> later(tensor a, std::string next) {
  const profiler::range part("whole coroutine");
  const int factor = co_await ferry::rpc_async<square>(next, 3);
  co_return a* static_cast<double>(factor);
}
ferry::future<tensor> continued(const tensor& a, const std::string& next) {
  return ferry::rpc_async<square>(next, 3).then([a](int factor) { return a * static_cast<double>(factor); });
}
void receive(int) {}
void fails_at_length() { throw std::runtime_error(std::string(std::size_t{2} << 20U, 'x')); }

struct box {
  tensor inside;
  tensor times(const tensor& other) const { return inside * other; }
};
box make_box(const tensor& inside) { return {inside}; }
template <class Archive>
void serialize(Archive& archive, box& each) {
  archive(each.inside);
}

// A call that has not ended when its handler has.
std::promise<void>& gate() {
  static std::promise<void> closed;
  return closed;
}
ferry::future<int>& left_call() {
  static ferry::future<int> of;
  return of;
}
int behind_the_gate() {
  gate().get_future().wait();
  return 1;
}
void leaves_a_call(const std::string& next) { left_call() = ferry::rpc_async<behind_the_gate>(next); }

std::shared_future<void>& door() {
  static std::shared_future<void> opens;
  return opens;
}
int behind_the_door(int x) {
  door().wait();
  return x;
}

// The values of a handler, which outlive it.
ferry::context_values& kept_values() {
  static ferry::context_values of;
  return of;
}
void keeps_its_values() { kept_values() = ferry::current_values(); }
void range_among_kept_values() {
  const ferry::context_values_scope scope(kept_values());
  const profiler::range late("late");
}

// Adds a record to each reply that leaves room for no other.
class talker final : public ferry::interceptor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "talker"; }
  std::unique_ptr<ferry::callee_hooks> on_arrival(ferry::incoming_request&) override {
    class hooks final : public ferry::callee_hooks {
      void on_reply(ferry::outgoing_reply& reply) override {
        const std::vector<std::byte> much(ferry::wire_limits().max_extension_bytes - 40);
        reply.add_record(0x8000, false, much);
      }
    };
    return std::make_unique<hooks>();
  }
};

// A caller of before there were brief answers: it asks for events, and keeps the records that come.
class old_caller final : public ferry::interceptor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "old caller"; }
  std::unique_ptr<ferry::caller_hooks> on_request(ferry::outgoing_request& request) override {
    class hooks final : public ferry::caller_hooks {
     public:
      explicit hooks(old_caller& of) noexcept : of_(of) {}
      void replied(ferry::incoming_reply& reply) override {
        const auto content = reply.records().find(ferry::detail::profile_record_type);
        of_.records.emplace_back();
        if (content) of_.records.back().assign(content->begin(), content->end());
      }

     private:
      old_caller& of_;
    };
    request.add_record(ferry::detail::profile_record_type, false, ferry::detail::encode_profile_wishes({}));
    return std::make_unique<hooks>(*this);
  }

  std::vector<std::vector<std::byte>> records;  // of calls one after the other
};

profiler::server_scope make_scope() { return profiler::server_scope(); }

tensor numbers() { return ferry::ones({2, 2}, ferry::dtype::f64); }

std::string call_name(std::string_view mode, std::string_view method, int from, int to) {
  return "rpc_" + std::string(mode) + "#" + std::string(method) + "(worker" + std::to_string(from) + " -> worker" +
         std::to_string(to) + ")";
}
std::string under(const std::string& call, std::string_view name) { return call + "#remote_op: " + std::string(name); }

const event& need(const profile& from, const std::string& name) {
  const event* found = from.find(name);
  std::string all;
  for (const event& each : from.events) all += each.name + "\n";
  REQUIRE_MESSAGE(found != nullptr, "there is no event '", name, "' among\n", all);
  return *found;
}
// The call event of that mode; the name of the method is the compiler's.
const event& need_call(const profile& from, std::string_view mode) {
  const std::string start = "rpc_" + std::string(mode) + "#";
  const auto is = [&](const event& each) {
    return !each.remote && each.kind == range_kind::call && each.name.starts_with(start);
  };
  REQUIRE(std::count_if(from.events.begin(), from.events.end(), is) == 1);
  return *std::find_if(from.events.begin(), from.events.end(), is);
}
std::multiset<std::string> names_of_operations(const profile& from, std::string_view prefix = {}) {
  std::multiset<std::string> all;
  for (const event& each : from.events) {
    if (each.kind != range_kind::operation) continue;
    REQUIRE(each.name.starts_with(prefix));
    all.insert(each.name.substr(prefix.size()));
  }
  return all;
}
bool within(const event& inner, const event& outer) {
  return inner.began_ns >= outer.began_ns - inner.uncertainty_ns &&
         inner.ended_ns <= outer.ended_ns + inner.uncertainty_ns;
}
using ferry_test::await_calls;

TEST_CASE("[row 173] the name of a call event holds mode, function, caller and callee") {
  cluster group(2);
  profiler::session recorded(group[0]);
  group[0].rpc_sync<square>("worker1", 2);
  group[0].rpc_async<square>("worker1", 2).wait();
  const auto made = group[0].remote<make_box>("worker1", numbers());
  (void)made.to_here();
  group[0].notify<receive>("worker1", 1);
  await_calls(group[0]);
  const profile found = recorded.finish();
  for (const std::string_view mode : {"sync", "async", "remote", "notify"}) {
    const event& call = need_call(found, mode);
    const std::string_view function = mode == "remote" ? "make_box" : mode == "notify" ? "receive" : "square";
    CHECK_MESSAGE(call.name.find(function) != std::string::npos, call.name);
    CHECK_MESSAGE(call.name.ends_with("(worker0 -> worker1)"), call.name);
    CHECK(call.node == 0);
    CHECK_FALSE(call.failed);
  }
  CHECK(found.count("to_here#(worker0)->(worker1)") == 1);
  CHECK(found.lost == 0);
  CHECK(found.unfinished == 0);
}

TEST_CASE("[row 174] the shapes of a remote operation's inputs are those of the same one run locally") {
  cluster group(2);
  const tensor a = ferry::ones({2, 3}, ferry::dtype::f64);
  const tensor b = ferry::ones({3, 3}, ferry::dtype::f64);
  profiler::session local(group[0], {.shapes = true, .memory = true});
  (void)product(a, b);
  const profile here = local.finish();
  profiler::session far(group[0], {.shapes = true, .memory = true});
  (void)group[0].rpc_sync<product>("worker1", a, b);
  const profile there = far.finish();
  const std::string prefix = under(need_call(there, "sync").name, "");
  const event& own = need(here, "matmul");
  const event& remote = need(there, prefix + "matmul");
  CHECK(own.shapes == "[[2, 3], [3, 3]]");
  CHECK(remote.shapes == own.shapes);
  CHECK(own.bytes == 6 * static_cast<std::int64_t>(sizeof(double)));
  CHECK(remote.bytes == own.bytes);
  SUBCASE("and they are not asked for by themselves") {
    profiler::session plain(group[0]);
    (void)group[0].rpc_sync<product>("worker1", a, b);
    const profile found = plain.finish();
    CHECK(need(found, prefix + "matmul").shapes.empty());
    CHECK(need(found, prefix + "matmul").bytes == -1);
  }
}

TEST_CASE("[row 177] two threads call the same worker: remote events have the right prefix, flag and worker") {
  cluster group(3);
  profiler::session recorded(group[0]);
  std::vector<std::thread> threads;
  for (int to = 1; to != 3; ++to) {
    for (int i = 0; i != 2; ++i) {
      threads.emplace_back([&, to, here = ferry::captured_context::current()] {
        const ferry::context_scope scope(here);
        (void)group[0].rpc_sync<product>(ferry_test::worker_name(to), numbers(), numbers());
      });
    }
  }
  for (std::thread& each : threads) each.join();
  const profile found = recorded.finish();
  for (int to = 1; to != 3; ++to) {
    const std::string end = "(worker0 -> worker" + std::to_string(to) + ")";
    std::size_t calls = 0;
    std::size_t operations = 0;
    for (const event& each : found.events) {
      if (each.kind == range_kind::call && each.name.ends_with(end)) {
        ++calls;
        CHECK_FALSE(each.remote);
        CHECK(each.node == 0);
      }
      if (each.kind == range_kind::operation && each.name.find(end + "#remote_op: ") != std::string::npos) {
        ++operations;
        CHECK(each.remote);
        CHECK(each.node == to);
      }
    }
    CHECK(calls == 2);
    CHECK(operations >= 4);
  }
}

TEST_CASE("[row 178] all operations of a remote function appear, with their prefix and worker") {
  cluster group(2);
  profiler::session local(group[0]);
  (void)product(numbers(), numbers());
  const auto here = names_of_operations(local.finish());
  CHECK(here.size() >= 2);
  const tensor a = numbers();
  for (const bool async : {false, true}) {
    CAPTURE(async);
    profiler::session far(group[0]);
    if (async) {
      (void)group[0].rpc_async<product>("worker1", a, a).get();
    } else {
      (void)group[0].rpc_sync<product>("worker1", a, a);
    }
    const profile there = far.finish();
    const event& call = need_call(there, async ? "async" : "sync");
    auto remote = names_of_operations(there, under(call.name, ""));
    CHECK(remote.count("matmul") == here.count("matmul"));
    CHECK(remote.count("add") == here.count("add"));
    for (const event& each : there.events) {
      if (each.kind != range_kind::operation) continue;
      CHECK(each.remote);
      CHECK(each.node == 1);
      CHECK(within(each, call));
    }
  }
}

TEST_CASE("[row 180] a range inside the remote function is one event, with the children that it has locally") {
  cluster group(2);
  profiler::session local(group[0]);
  (void)in_range(numbers(), numbers());
  const profile here = local.finish();
  profiler::session far(group[0]);
  (void)group[0].rpc_sync<in_range>("worker1", numbers(), numbers());
  const profile there = far.finish();
  const std::string prefix = under(need_call(there, "sync").name, "");
  CHECK(here.count("my range") == 1);
  CHECK(there.count(prefix + "my range") == 1);
  std::vector<std::string> local_children;
  for (const event* each : here.children(need(here, "my range"))) local_children.push_back(prefix + each->name);
  std::vector<std::string> remote_children;
  for (const event* each : there.children(need(there, prefix + "my range"))) remote_children.push_back(each->name);
  CHECK(local_children.size() >= 2);
  CHECK(remote_children == local_children);
}

TEST_CASE("[row 182] a call event occurs once, has its worker, and lies in the range around it") {
  cluster group(2);
  for (const bool async : {false, true}) {
    CAPTURE(async);
    profiler::session recorded(group[0]);
    {
      const profiler::range outer("outer");
      if (async) {
        CHECK(group[0].rpc_async<square>("worker1", 3).get() == 9);
      } else {
        CHECK(group[0].rpc_sync<square>("worker1", 3) == 9);
      }
    }
    const profile found = recorded.finish();
    const event& outer = need(found, "outer");
    const event& call = need_call(found, async ? "async" : "sync");
    CHECK(found.count(call.name) == 1);
    CHECK(call.parent == outer.number);
    CHECK(call.node == 0);
    CHECK(within(call, outer));
    CHECK(&outer < &call);  // events stand in the order of their beginning
    const event& handler = *found.children(call).at(0);
    CHECK(handler.kind == range_kind::handler);
    CHECK(handler.node == 1);
    CHECK(handler.remote);
    CHECK(within(handler, call));
  }
}

TEST_CASE("nested calls have the names of all calls on the way, and each its worker") {
  cluster group(3);
  profiler::session recorded(group[0]);
  CHECK(group[0].rpc_sync<pass_on>("worker1", 4, std::string("worker2")) == 17);
  const profile found = recorded.finish();
  const event& first = need_call(found, "sync");
  const event& range = need(found, under(first.name, "pass on"));
  REQUIRE(found.children(range).size() == 1);
  const event& second = *found.children(range).front();
  CHECK(second.kind == range_kind::call);
  CHECK(second.node == 1);
  CHECK(second.name.ends_with("(worker1 -> worker2)"));
  REQUIRE(found.children(second).size() == 1);
  const event& last = *found.children(second).front();
  CHECK(last.kind == range_kind::handler);
  CHECK(last.node == 2);
  CHECK(last.name.starts_with(second.name + "#remote_op: "));
  CHECK(last.uncertainty_ns >= second.uncertainty_ns);
  CHECK(within(last, second));
}

TEST_CASE("what coroutines and continuations do after they were suspended is recorded") {
  cluster group(3);
  profiler::session recorded(group[0]);
  (void)group[0].rpc_sync<later>("worker1", numbers(), std::string("worker2"));
  const profile coroutine = recorded.finish();
  const event& call = need_call(coroutine, "sync");
  const event& whole = need(coroutine, under(call.name, "whole coroutine"));
  const event& after = need(coroutine, under(call.name, "mul_scalar"));
  CHECK(after.parent == whole.number);
  CHECK(within(after, whole));

  profiler::session again(group[0]);
  (void)group[0].rpc_sync<continued>("worker1", numbers(), std::string("worker2"));
  const profile continuation = again.finish();
  CHECK(need(continuation, under(need_call(continuation, "sync").name, "mul_scalar")).node == 1);

  profiler::session own(group[0]);
  group[0].rpc_async<square>("worker1", 2).then([](int) { (void)(numbers() + numbers()); }).wait();
  CHECK(own.finish().count("add") == 1);
}

TEST_CASE("calls on objects and those that make them are recorded at the owner") {
  cluster group(2);
  profiler::session recorded(group[0]);
  const auto made = group[0].remote<make_box>("worker1", numbers());
  (void)made.rpc_sync<&box::times>(numbers());
  await_calls(group[0]);
  const profile found = recorded.finish();
  const event& creation = need_call(found, "remote");
  REQUIRE(found.children(creation).size() == 1);
  CHECK(found.children(creation).front()->kind == range_kind::handler);
  CHECK(need(found, under(need_call(found, "sync").name, "mul")).node == 1);
}

TEST_CASE("a call that fails is marked, with the error, and brings its events back") {
  cluster group(2);
  ferry::set_log_level(ferry::log_level::off);
  profiler::session recorded(group[0]);
  CHECK_THROWS_AS(group[0].rpc_sync<fails_after_work>("worker1", numbers()), std::runtime_error);
  const profile found = recorded.finish();
  ferry::set_log_level(ferry::log_level::warning);
  const event& call = need_call(found, "sync");
  CHECK(call.failed);
  CHECK_MESSAGE(call.error.find("there was no more") != std::string::npos, call.error);
  CHECK(need(found, under(call.name, "add")).node == 1);
  const std::vector<const event*> parts = found.children(call);
  REQUIRE(parts.size() == 1);
  CHECK(parts.front()->failed);
  CHECK(parts.front()->error == call.error);
}

TEST_CASE("an exception marks the range and the operation that it leaves") {
  cluster group(1);
  profiler::session recorded(group[0]);
  try {
    const profiler::range part("broken");
    (void)ferry::matmul(ferry::ones({2, 3}), ferry::ones({2, 3}));
  } catch (const ferry::error&) {  // the profile has it
  }
  const profile found = recorded.finish();
  CHECK(need(found, "broken").failed);
  CHECK(need(found, "matmul").failed);
}

TEST_CASE("without a session, and after it, nothing is recorded and requests carry nothing") {
  cluster group(2);
  profiler::session recorded(group[0]);
  (void)recorded.finish();
  expect_error(errc::invalid_argument, "is over", [&] { (void)recorded.finish(); });
  (void)group[0].rpc_sync<product>("worker1", numbers(), numbers());
  CHECK_FALSE(ferry::detail::ranges_watched());
}

TEST_CASE("an inner session has its own events, the outer one both") {
  cluster group(2);
  profiler::session outer(group[0]);
  (void)(numbers() + numbers());
  profile small;
  {
    const profiler::range part("around");
    profiler::session inner(group[0]);
    (void)group[0].rpc_sync<product>("worker1", numbers(), numbers());
    small = inner.finish();
  }
  CHECK(small.count("add") == 0);
  CHECK(small.count("around") == 0);
  const event& call = need_call(small, "sync");
  const profile large = outer.finish();
  CHECK(large.count("add") == 1);
  CHECK(large.count(under(call.name, "matmul")) == 1);
  CHECK(need(large, call.name).parent == need(large, "around").number);
  CHECK(large.unfinished == 0);
}

TEST_CASE("the events of an inner session that an exception ends are the outer one's, too") {
  cluster group(2);
  profiler::session outer(group[0]);
  try {
    const profiler::session inner(group[0]);
    const profiler::range part("work");
    (void)group[0].rpc_sync<product>("worker1", numbers(), numbers());
    throw std::runtime_error("given up");
  } catch (const std::runtime_error&) {  // as tests of users do
  }
  const profile large = outer.finish();
  CHECK(need(large, "work").failed);
  CHECK(large.count(under(need_call(large, "sync").name, "matmul")) == 1);
}

TEST_CASE("scopes that were moved from are refused in words") {
  cluster group(1);
  profiler::process_scope first(group[0], {});
  const profiler::process_scope second = std::move(first);
  expect_error(errc::no_state, "moved from", [&] { first.enter(); });  // NOLINT(bugprone-use-after-move)
  expect_error(errc::no_state, "moved from", [&] { (void)first.exit(); });
  profiler::server_scope third;
  const profiler::server_scope fourth = std::move(third);
  expect_error(errc::no_state, "moved from", [&] { third.enter(); });  // NOLINT(bugprone-use-after-move)
  expect_error(errc::no_state, "moved from", [&] { (void)third.exit(); });
}

TEST_CASE("a thread's ring keeps the last events and counts the others") {
  cluster group(1);
  profiler::session recorded(group[0], {.events_per_thread = 4});
  for (int i = 0; i != 10; ++i) const profiler::range part(std::to_string(i));
  const profile found = recorded.finish();
  REQUIRE(found.events.size() == 4);
  CHECK(found.events.front().name == "6");
  CHECK(found.events.back().name == "9");
  CHECK(found.lost == 6);
}

TEST_CASE("a session that ends within a range leaves nothing that later ones see") {
  cluster group(1);
  {
    profiler::session recorded(group[0]);
    const profiler::range part("open");
    const profile found = recorded.finish();
    CHECK(found.unfinished == 1);
    CHECK(found.events.empty());
    CHECK_FALSE(ferry::detail::ranges_watched());
  }
  profiler::session next(group[0]);
  { const profiler::range part("of the next"); }
  const profile found = next.finish();
  CHECK(found.events.size() == 1);
  CHECK(need(found, "of the next").parent == 0);
}

TEST_CASE("a session that ends within a range has no part in its thread when both are gone") {
  cluster group(1);
  {
    profiler::session recorded(group[0]);
    const profiler::range part("open");
    CHECK(recorded.finish().unfinished == 1);
  }
  CHECK(ferry::current_value(ferry::detail::current_recording) == nullptr);
  {
    profiler::session recorded(group[0]);
    CHECK(recorded.finish().unfinished == 0);
    CHECK(ferry::current_value(ferry::detail::current_recording) == nullptr);  // at once, where nothing is open
  }
}

TEST_CASE("of inner sessions the outer one keeps the last events, and counts the others") {
  cluster group(1);
  profiler::session outer(group[0], {.events_per_thread = 2});
  for (int i = 0; i != 40; ++i) {
    profiler::session inner(group[0]);
    { const profiler::range part(std::to_string(i)); }
    CHECK(inner.finish().events.size() == 1);
  }
  const profile found = outer.finish();
  CHECK(found.events.size() + found.lost == 40);
  CHECK(found.events.size() <= 32);
  REQUIRE(!found.events.empty());
  CHECK(found.events.back().name == "39");
}

TEST_CASE("what had not ended when the reply was made counts as lost") {
  cluster group(3);
  profiler::session recorded(group[0]);
  group[0].rpc_sync<leaves_a_call>("worker1", "worker2");
  const profile found = recorded.finish();
  CHECK(found.lost == 1);
  gate().set_value();
  CHECK(left_call().get() == 1);
}

TEST_CASE("a call whose reply has no room for a profile is answered without it") {
  cluster group(2, {.configure = [](ferry::worker_config& config) {
                  if (config.name == "worker1") config.interceptors = {std::make_shared<talker>()};
                }});
  profiler::session recorded(group[0]);
  CHECK(group[0].rpc_sync<square>("worker1", 3) == 9);
  const profile found = recorded.finish();
  CHECK(need_call(found, "sync").failed == false);
  CHECK(found.events.size() == 1);
}

TEST_CASE("a caller that does not ask for brief answers gets the handler's name") {
  const auto caller = std::make_shared<old_caller>();
  cluster group(2, {.configure = [&](ferry::worker_config& config) {
                  if (config.name == "worker0") config.interceptors = {caller};
                }});
  CHECK(group[0].rpc_sync<square>("worker1", 3) == 9);
  REQUIRE(caller->records.size() == 1);
  CHECK_FALSE(ferry::detail::decode_brief_answer(caller->records.front()).has_value());
  const ferry::detail::profile_batch found = ferry::detail::decode_profile_batch(caller->records.front());
  CHECK_FALSE(found.brief);
  CHECK(found.node == 1);
  REQUIRE(found.events.size() == 1);
  CHECK(found.events.front().name.find("square") != std::string::npos);
  CHECK(found.events.front().kind == range_kind::handler);
}

// Whose recording goes on when its thread serves the next request.
TEST_CASE("requests between the steps of a coroutine have recordings of their own") {
  cluster group(3, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  profiler::session recorded(group[0]);
  std::vector<ferry::future<tensor>> under_way;
  int calls = 0;
  for (int round = 0; round != 20; ++round) {
    under_way.push_back(group[0].rpc_async<later>("worker1", numbers(), std::string("worker2")));
    CHECK(group[0].rpc_sync<square>("worker1", round) == round * round);
    calls += 2;
  }
  for (auto& each : under_way) CHECK(each.get().at<double>(0, 0) == 9);
  await_calls(group[0]);
  const profile found = recorded.finish();
  CHECK(found.lost == 0);
  int handlers = 0;
  int ranges = 0;
  for (const event& each : found.events) {
    if (each.node != 1) continue;
    if (each.kind == range_kind::handler) ++handlers;
    if (each.name.ends_with("whole coroutine")) {
      ++ranges;
      CHECK(found.children(each).size() == 2);  // its call, and its operation
    }
  }
  CHECK(handlers == calls);
  CHECK(ranges == 20);
}

// What is kept of each is destroyed by another thread than made it, after that has ended.
TEST_CASE("calls whose threads have ended before the replies come are recorded") {
  constexpr int calls = 3;
  cluster group(2);
  std::promise<void> opener;
  door() = opener.get_future().share();
  profiler::session recorded(group[0]);
  std::vector<ferry::future<int>> open;
  for (int i = 0; i != calls; ++i) {
    std::thread([&, values = ferry::current_values()] {
      const ferry::context_values_scope scope(values);
      CHECK(group[0].rpc_sync<square>("worker1", i) == i * i);
      open.push_back(group[0].rpc_async<behind_the_door>("worker1", i));
    }).join();
  }
  opener.set_value();
  for (int i = 0; i != calls; ++i) CHECK(open[static_cast<std::size_t>(i)].get() == i);
  await_calls(group[0]);
  const profile found = recorded.finish();
  CHECK(found.lost == 0);
  CHECK(found.unfinished == 0);
  int made = 0;
  for (const event& each : found.events) {
    if (each.kind != range_kind::call) continue;
    ++made;
    CHECK(found.children(each).size() == 1);
  }
  CHECK(made == 2 * calls);
}

TEST_CASE("the recording of a request whose values are kept is not that of a later one") {
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  profiler::session recorded(group[0]);
  constexpr int rounds = 10;
  for (int i = 0; i != rounds; ++i) {
    group[0].rpc_sync<keeps_its_values>("worker1");
    for (int x = 0; x != 5; ++x) CHECK(group[0].rpc_sync<square>("worker1", x) == x * x);
    group[0].rpc_sync<range_among_kept_values>("worker1");
    if (i % 2 == 0) std::thread([] { kept_values() = {}; }).join();
  }
  kept_values() = {};
  const profile found = recorded.finish();
  CHECK(found.lost == 0);
  CHECK(found.events.size() == 2 * 7 * rounds);  // calls and their handlers
  for (const event& each : found.events) CHECK_FALSE(each.name.ends_with("late"));
}

TEST_CASE("a handler whose error is too long for a profile is lost, and counted") {
  cluster group(2);
  profiler::session recorded(group[0]);
  CHECK_THROWS_AS(group[0].rpc_sync<fails_at_length>("worker1"), std::exception);
  const profile found = recorded.finish();
  CHECK(found.events.size() == 1);
  CHECK(need_call(found, "sync").failed);
  CHECK(found.lost == 1);
  CHECK(found.clocks.size() == 1);
}

TEST_CASE("a server scope without callees asks none, and keeps the last events") {
  using profiler::server_scope;
  cluster group(3);
  server_scope here({.remote = false, .events_per_thread = 2});
  here.enter();
  for (int i = 0; i != 40; ++i) (void)group[0].rpc_sync<pass_on>("worker1", 3, "worker2");
  const std::vector<profile> requests = here.exit();
  std::uint64_t lost = 0;
  std::size_t events = 0;
  for (const profile& each : requests) {
    lost += each.lost;
    events += each.events.size();
    for (const event& one : each.events) CHECK_FALSE(one.remote);
  }
  CHECK(requests.size() >= 8);
  CHECK(requests.size() + events <= 16 * 3);
  CHECK(lost + events == 40 * 4);  // at worker1 the handler, its range and its call; at worker2 the handler
}

TEST_CASE("[row 186] the end of a call is recorded once, also if it is cancelled while its reply is on the way") {
  cluster group(2);
  for (int i = 0; i != 50; ++i) {
    profiler::session recorded(group[0]);
    ferry::future<int> call = group[0].rpc_async<square>("worker1", 3);
    call.cancel();
    try {
      (void)call.get();
    } catch (const ferry::error& e) {
      CHECK(e.kind() == errc::call_cancelled);
    }
    const profile found = recorded.finish();
    std::size_t ends = 0;
    for (const event& each : found.events) ends += each.kind == range_kind::call ? 1 : 0;
    CHECK(ends + found.unfinished == 1);
  }
}

TEST_CASE("[row 185] of two nested server scopes the inner one sees the second request, the outer one both") {
  using profiler::server_scope;
  cluster group(2);
  const auto make = [&] { return group[0].remote<make_scope>("worker1"); };
  const auto outer = make();
  const auto inner = make();
  outer.rpc_sync<&server_scope::enter>();
  std::string refusal;
  try {
    outer.rpc_sync<&server_scope::enter>();
  } catch (const ferry::error& e) {
    refusal = e.what();
  }
  CHECK_MESSAGE(refusal.find("entered already") != std::string::npos, refusal);
  (void)group[0].rpc_sync<product>("worker1", numbers(), numbers());
  inner.rpc_sync<&server_scope::enter>();
  (void)group[0].rpc_sync<in_range>("worker1", numbers(), numbers());
  const profile second = profiler::merged(inner.rpc_sync<&server_scope::exit>());
  const profile both = profiler::merged(outer.rpc_sync<&server_scope::exit>());
  CHECK(second.count("matmul") == 1);
  CHECK(second.count("my range") == 1);
  CHECK(both.count("matmul") == 2);
  CHECK(both.count("my range") == 1);
  CHECK(both.node == 1);
  CHECK(need(both, "matmul").node == 1);
  (void)group[0].rpc_sync<product>("worker1", numbers(), numbers());
  outer.rpc_sync<&server_scope::enter>();
  CHECK(profiler::merged(outer.rpc_sync<&server_scope::exit>()).count("matmul") == 0);
}

}  // namespace profiler_test
