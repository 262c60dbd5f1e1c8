// One-way calls.

#include <atomic>
#include <stdexcept>
#include <string>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"

namespace notify_test {

using ferry_test::captured_log;
using ferry_test::cluster;

ferry_test::gate told;
std::atomic<int> sum{0};
int count(int value) {
  sum += value;
  told.arrive();
  return sum;  // dropped
}
std::atomic<bool> never{false};
void look_at_deadline() {
  never = ferry::this_call().deadline().is_never();
  told.arrive();
}
void fail() {
  told.arrive();
  throw std::domain_error("a lost error");
}
ferry::task<void> fail_later() {
  told.arrive();
  throw std::domain_error("nor this");
  co_return;
}
int plus_one(int value) { return value + 1; }
struct unloadable {
  template <class Archive>
  void save(Archive& archive) const {
    archive(1);
  }
  template <class Archive>
  void load(Archive&) {
    throw std::domain_error("cannot be loaded");
  }
};
void take(const unloadable&) {}

TEST_CASE("a one-way call runs the method; its result is dropped") {
  cluster group(2);
  told.reset();
  sum = 0;
  for (int i = 1; i <= 100; ++i) group[0].notify<count>("worker1", i);
  group[0].notify<count>("worker0", 1000);
  ferry::notify<count>(1, 10000);
  told.await_arrivals(102);
  CHECK(sum == 5050 + 11000);
}

TEST_CASE("a one-way call has no deadline, whatever the default timeout") {
  cluster group(2, {.configure = [](ferry::worker_config& config) {
                  config.rpc_timeout = std::chrono::milliseconds(1);
                  config.init_timeout = std::chrono::seconds(60);
                }});
  told.reset();
  group[0].notify<look_at_deadline>("worker1");
  told.await_arrivals(1);
  CHECK(never);
}

TEST_CASE("errors of one-way calls are logged at the callee, which goes on") {
  captured_log log;
  {
    cluster group(2);
    told.reset();
    group[0].notify<fail>("worker1");
    group[0].notify<fail_later>("worker1");
    group[0].notify<take>("worker1", unloadable{});
    told.await_arrivals(2);
    CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
  }  // the shutdown waits for all of them
  CHECK(log.has("a lost error", "fail"));
  CHECK(log.has("nor this", "fail_later"));
  CHECK(log.has("cannot be loaded", "take"));
}

}  // namespace notify_test
