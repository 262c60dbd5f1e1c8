// What the trace hook is told.

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"

namespace trace_test {

int plus_one(int value) { return value + 1; }
int fail() { throw std::domain_error("x"); }
ferry::task<int> later(int value) { co_return value; }
using kind = ferry::trace_event::kind;

namespace {

struct event {
  kind what;
  std::string method;
  std::string worker;
  std::string peer;
  std::uint64_t call_id;
  std::int64_t at;
};
struct recorder {
  std::mutex mutex;
  std::vector<event> events;
  static void record(const ferry::trace_event& e, void* self) {
    auto* own = static_cast<recorder*>(self);
    std::lock_guard lock(own->mutex);
    own->events.push_back(
        {e.what, std::string(e.method), std::string(e.worker), std::string(e.peer), e.call_id, e.steady_ns});
  }
  [[nodiscard]] std::vector<event> of(kind what, std::string_view method) {
    std::lock_guard lock(mutex);
    std::vector<event> result;
    for (const event& each : events) {
      if (each.what == what && each.method.find(method) != std::string::npos) result.push_back(each);
    }
    return result;
  }
};

}  // namespace

TEST_CASE("the trace hook receives the begin and end of every call and handler, failed ones too") {
  ferry_test::captured_log log;
  static recorder seen;  // may be told a little after it was taken off
  {
    ferry_test::cluster group(2);
    ferry::set_trace_sink(&recorder::record, &seen);
    (void)group[0].rpc_sync<plus_one>("worker1", 1);
    (void)group[0].rpc_async<plus_one>("worker1", 2).get();
    CHECK_THROWS(group[0].rpc_sync<trace_test::fail>("worker1"));
    (void)group[0].rpc_sync<later>("worker1", 1);
    group[0].notify<plus_one>("worker1", 1);
    group.shutdown();
    ferry::set_trace_sink(nullptr, nullptr);
  }
  for (const char* method : {"plus_one", "fail", "later"}) {
    CAPTURE(method);
    const std::size_t count = std::string_view(method) == "plus_one" ? 3 : 1;
    for (const kind what : {kind::handler_begin, kind::handler_end}) {
      const auto events = seen.of(what, method);
      CHECK(events.size() == count);
      for (const event& each : events) {
        CHECK(each.worker == "worker1");
        CHECK(each.at > 0);
      }
    }
    const std::size_t answered = std::string_view(method) == "plus_one" ? 2 : 1;
    const auto begun = seen.of(kind::call_begin, method);
    const auto ended = seen.of(kind::call_end, method);
    CHECK(begun.size() >= answered);
    CHECK(ended.size() == begun.size());
    std::set<std::uint64_t> ids;
    for (const event& each : begun) {
      CHECK(each.worker == "worker0");
      ids.insert(each.call_id);
    }
    for (const event& each : ended) CHECK(ids.contains(each.call_id));
  }
}

}  // namespace trace_test
