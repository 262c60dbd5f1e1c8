#include <ferry/rpc/wait_all.hpp>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/types/vector.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"

namespace wait_all_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;

std::atomic<int> done{0};
ferry::tensor add(const ferry::tensor& a, const ferry::tensor& b) {
  ferry::tensor sum = a.clone();
  for (std::int64_t i = 0; i != sum.numel(); ++i) sum.data<float>()[i] += b.data<float>()[i];
  return sum;
}
int fail(const std::string& text) { throw std::domain_error(text); }
int late(int value) {
  std::this_thread::sleep_for(20ms);  // a slow handler
  ++done;
  return value;
}
ferry_test::gate door;
void held() { door.pass(); }
// Waits for all of its own calls, in the only num_worker_threads slot of the worker.
int many(int count) {
  done = 0;
  ferry::wait_all([&] {
    for (int i = 0; i != count; ++i) (void)ferry::rpc_async<late>("worker1", i);
  });
  return done;
}

TEST_CASE("[row 65] wait_all waits for the calls made with rpc_async in its body") {
  cluster group(2);
  ferry::future<ferry::tensor> sum;
  ferry::wait_all([&] { sum = group[0].rpc_async<add>("worker1", ferry::ones({2, 2}), ferry::ones({2, 2})); });
  CHECK(sum.ready());
  CHECK(equal(sum.get(), ferry::full({2, 2}, 2.F)));

  std::vector<ferry::future<int>> calls;
  done = 0;
  const int kept = ferry::wait_all([&] {
    CHECK(group[0].rpc_sync<late>("worker1", 1) == 1);
    for (int i = 0; i != 20; ++i) calls.push_back(group[0].rpc_async<late>("worker1", i));
    (void)group[0].rpc_async<late>("worker0", 20);  // its future is dropped
    return 5;
  });
  CHECK(kept == 5);
  CHECK(done == 22);
  for (const auto& call : calls) CHECK(call.ready());
  CHECK(*ferry::wait_all([] { return std::make_unique<int>(3); }) == 3);

  // No call is recorded after wait_all has returned.
  const auto free = group[0].rpc_async<late>("worker1", 1);
  ferry::wait_all([] {});
  CHECK(free.get() == 1);
}

TEST_CASE("[row 65] wait_all may be nested, repeated, and used inside handlers") {
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  for (int i = 0; i != 3; ++i) {
    ferry::future<int> outer;
    ferry::future<int> inner;
    ferry::wait_all([&] {
      outer = group[0].rpc_async<late>("worker1", 1);
      ferry::wait_all([&] { inner = group[0].rpc_async<late>("worker1", 2); });
      CHECK(inner.ready());
    });
    CHECK(outer.ready());
  }
  CHECK(group[0].rpc_sync<many>("worker1", 10) == 10);
}

TEST_CASE("[row 66] wait_all throws the error of a call once all calls are complete, and stops recording") {
  captured_log log;
  cluster group(2);
  done = 0;
  const auto body = [&] {
    (void)group[0].rpc_async<late>("worker1", 1);
    (void)group[0].rpc_async<fail>("worker1", "the first");
    (void)group[0].rpc_async<fail>("worker1", "the second");
    (void)group[0].rpc_async<late>("worker1", 2);
  };
  CHECK_THROWS_WITH_AS(ferry::wait_all(body), "the first", std::domain_error);
  CHECK(done == 2);
  const auto failing = group[0].rpc_async<fail>("worker1", "outside");
  ferry::wait_all([] {});
  CHECK_THROWS_WITH_AS((void)failing.get(), "outside", std::domain_error);
  expect_error(errc::rpc_timeout, "", [&] {
    ferry::wait_all([&] { (void)group[0].rpc_async<held>({"worker1", {.timeout = 1ms}}); });
  });
  door.open();
}

TEST_CASE("[row 66] wait_all rethrows an exception of its body once its calls are complete, and stops recording") {
  captured_log log;
  cluster group(2);
  done = 0;
  const auto body = [&] {
    (void)group[0].rpc_async<late>("worker1", 1);
    (void)group[0].rpc_async<fail>("worker1", "of a call");
    throw std::logic_error("of the body");
  };
  CHECK_THROWS_WITH_AS(ferry::wait_all(body), "of the body", std::logic_error);
  CHECK(done == 1);
  const auto failing = group[0].rpc_async<fail>("worker1", "outside");
  ferry::wait_all([] {});
  CHECK_THROWS_AS((void)failing.get(), std::domain_error);
}

}  // namespace wait_all_test
