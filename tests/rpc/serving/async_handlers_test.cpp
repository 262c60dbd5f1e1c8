// Methods that answer later: futures, promises completed elsewhere, continuations, coroutines.

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"

namespace async_test {

using ferry_test::cluster;
using ferry_test::worker_name;

int add(int a, int b) { return a + b; }

ferry::future<int> throws_early(int) { throw std::domain_error("before there is a future"); }
ferry::task<int> throws_in_coroutine(int) {
  throw std::domain_error("in the coroutine");
  co_return 0;
}
ferry::task<int> throws_after_wait(std::string to, int x) {
  co_await ferry::rpc_async<add>(to, x, x);
  throw std::domain_error("after a wait");
}
ferry::future<int> empty(int) { return {}; }
ferry::future<int> broken(int) {
  const ferry::promise<int> forgotten;
  return forgotten.get_future();
}

// The future of a nested call.
ferry::future<int> add_through(const std::string& to, int x, int y) { return ferry::rpc_async<add>(to, x, y); }
// One made by hand, completed in a continuation.
ferry::future<int> add_by_promise(const std::string& to, int x, int y, int z) {
  auto promise = std::make_shared<ferry::promise<int>>();
  ferry::rpc_async<add>(to, x, y).add_done_callback(
      [promise, z](const ferry::future<int>& sum) { promise->set_value(sum.get() + z); });
  return promise->get_future();
}
// That of a continuation.
ferry::future<int> add_chained(const std::string& to, int x, int y, int z) {
  return ferry::rpc_async<add>(to, x, y).then([z](int sum) { return sum + z; });
}
ferry::task<int> add_in_coroutine(std::string to, int x, int y, int z) {
  const int sum = co_await ferry::rpc_async<add>(to, x, y);
  co_return co_await ferry::rpc_async<add>(to, sum, z);
}
ferry::future<int> add_multi_chained(const std::string& to, int x, int times, int step) {
  auto result = ferry::rpc_async<add>(to, x, 0);
  for (int i = 0; i != times; ++i) result = result.then([step](int value) { return value + step; });
  return result;
}
// Joined by hand under a lock.
ferry::future<int> add_multi_fanout(const std::string& to, int x, int times, int step) {
  struct join {
    std::mutex mutex;
    int sum = 0;
    int missing = 0;
    ferry::promise<int> done;
  };
  auto all = std::make_shared<join>();
  all->missing = times;
  all->sum = x;
  auto result = all->done.get_future();
  for (int i = 0; i != times; ++i) {
    ferry::rpc_async<add>(to, 0, step).add_done_callback([all](int value) {
      bool last = false;
      int sum = 0;
      {
        std::lock_guard lock(all->mutex);
        sum = all->sum += value;
        last = --all->missing == 0;
      }
      if (last) all->done.set_value(sum);
    });
  }
  return result;
}
ferry::task<int> fanout_in_coroutine(std::string to, int x, int times, int step) {
  std::vector<ferry::future<int>> parts;
  for (int i = 0; i != times; ++i) parts.push_back(ferry::rpc_async<add>(to, 0, step));
  for (const int part : co_await ferry::when_all(std::move(parts))) x += part;
  co_return x;
}

struct holder {
  int base = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(base);
  }
  static ferry::future<int> static_add(const std::string& to, int x, int y) { return ferry::rpc_async<add>(to, x, y); }
  static ferry::task<int> static_task(std::string to, int x, int y) {
    co_return co_await ferry::rpc_async<add>(to, x, y);
  }
  [[nodiscard]] ferry::future<int> bound_add(const std::string& to, int x) const {
    return ferry::rpc_async<add>(to, base, x).then([this](int sum) { return sum + base; });  // lives until the answer
  }
  ferry::task<int> bound_task(std::string to, int x) {
    const int sum = co_await ferry::rpc_async<add>(to, base, x);
    co_return sum + base;
  }
};

// A result that another thread provides, long after the handler's thread went on.
struct waiting_room {
  std::mutex mutex;
  std::vector<ferry::promise<int>> promises;
};
waiting_room room;
ferry_test::gate entered;
ferry::future<int> wait_in_room(int) {
  ferry::promise<int> promise;
  auto result = promise.get_future();
  {
    std::lock_guard lock(room.mutex);
    room.promises.push_back(std::move(promise));
  }
  entered.arrive();
  return result;
}
int call_in(int value) {
  std::lock_guard lock(room.mutex);
  for (auto& promise : room.promises) promise.set_value(value);
  const int count = static_cast<int>(room.promises.size());
  room.promises.clear();
  return count;
}

// Recursive: each level waits without a thread.
ferry::task<int> count_down(int n) {
  if (n == 0) co_return 0;
  const int next = (ferry::get_worker_info().id().value + 1) % static_cast<int>(ferry::get_worker_infos().size());
  co_return 1 + co_await ferry::rpc_async<count_down>(next, n - 1);
}

namespace {

template <auto F, class... A>
void expect_both(cluster& group, int value, const A&... arguments) {
  CHECK(group[0].rpc_sync<F>("worker1", arguments...) == value);
  CHECK(group[0].rpc_async<F>("worker1", arguments...).get() == value);
  CHECK(group[0].rpc_sync<F>("worker0", arguments...) == value);
}

}  // namespace

TEST_CASE("[row 70] a method that throws before it has a future gives that error to the caller") {
  ferry_test::captured_log log;
  cluster group(2);
  CHECK_THROWS_WITH_AS((void)group[0].rpc_sync<throws_early>("worker1", 1), "before there is a future",
                       std::domain_error);
  CHECK_THROWS_WITH_AS((void)group[0].rpc_async<throws_early>("worker1", 1).get(), "before there is a future",
                       std::domain_error);
  CHECK_THROWS_WITH_AS((void)group[0].rpc_sync<throws_in_coroutine>("worker1", 1), "in the coroutine",
                       std::domain_error);
  CHECK_THROWS_WITH_AS((void)group[0].rpc_sync<throws_after_wait>("worker1", "worker0", 1), "after a wait",
                       std::domain_error);
  expect_error(ferry::errc::no_state, "", [&] { (void)group[0].rpc_sync<empty>("worker1", 1); });
  expect_error(ferry::errc::promise_broken, "", [&] { (void)group[0].rpc_sync<broken>("worker1", 1); });
  CHECK(group[0].rpc_sync<add>("worker1", 1, 2) == 3);
}

TEST_CASE("[row 72] a method may return the future of a nested call") {
  cluster group(3);
  expect_both<add_through>(group, 3, "worker2", 1, 2);
  expect_both<add_through>(group, 3, "worker1", 1, 2);
}

TEST_CASE("[row 73] a method may return a future of its own that a continuation completes") {
  cluster group(3);
  expect_both<add_by_promise>(group, 6, "worker2", 1, 2, 3);
}

TEST_CASE("[row 74] a method may return the future of a continuation, or be a coroutine") {
  cluster group(3);
  expect_both<add_chained>(group, 6, "worker2", 1, 2, 3);
  expect_both<add_in_coroutine>(group, 6, "worker2", 1, 2, 3);
}

TEST_CASE("[row 76] static and non-static member functions may return futures and tasks") {
  cluster group(3);
  expect_both<&holder::static_add>(group, 3, "worker2", 1, 2);
  expect_both<&holder::static_task>(group, 3, "worker2", 1, 2);
  expect_both<&holder::bound_add>(group, 25, holder{10}, "worker2", 5);
  expect_both<&holder::bound_task>(group, 25, holder{10}, "worker2", 5);
}

TEST_CASE("[row 77] a method may return the end of a chain of 20 continuations") {
  cluster group(3);
  expect_both<add_multi_chained>(group, 1 + 20 * 3, "worker2", 1, 20, 3);
}

TEST_CASE("[row 78] a method may return a future that joins 20 nested calls") {
  cluster group(3);
  expect_both<add_multi_fanout>(group, 1 + 20 * 3, "worker2", 1, 20, 3);
  expect_both<fanout_in_coroutine>(group, 1 + 20 * 3, "worker2", 1, 20, 3);
}

TEST_CASE("methods that answer later hold no thread: 300 wait on one") {
  cluster group(2, {.configure = [](ferry::worker_config& config) {
                  config.num_worker_threads = 1;
                  config.max_blocked_handlers = 1;
                }});
  entered.reset();
  std::vector<ferry::future<int>> waiting;
  for (int i = 0; i != 300; ++i) waiting.push_back(group[0].rpc_async<wait_in_room>("worker1", i));
  entered.await_arrivals(300);
  CHECK_FALSE(waiting.front().ready());
  CHECK(group[0].rpc_sync<call_in>("worker1", 7) == 300);
  for (const int value : ferry::wait_all(std::move(waiting))) CHECK(value == 7);
}

TEST_CASE("a coroutine that calls on from worker to worker, 200 deep, on one thread each") {
  cluster group(3, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  CHECK(group[0].rpc_sync<count_down>("worker1", 200) == 200);
}

}  // namespace async_test
