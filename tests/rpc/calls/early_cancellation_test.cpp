// A call that its caller gives up while the callee has no place for it yet.

#include <atomic>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "gate.hpp"

namespace early_cancellation_test {

ferry_test::gate busy;
std::atomic<int> runs{0};

void occupy() { busy.pass(); }
void note_run() { ++runs; }
int pass_by() { return 1; }

}  // namespace early_cancellation_test

// Answers on the thread that reads the connection, so its reply says that all frames before it have been read.
template <>
struct ferry::method_traits<&early_cancellation_test::pass_by> {
  static constexpr bool inline_handler = true;
};

namespace early_cancellation_test {

TEST_CASE("a call that is cancelled before its handler begins is not run") {
  busy.reset();
  runs = 0;
  ferry_test::cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  const ferry::future<void> occupied = group[0].rpc_async<occupy>("worker1");
  busy.await_arrivals(1);
  const ferry::future<void> queued = group[0].rpc_async<note_run>("worker1");
  queued.cancel();
  CHECK_THROWS_AS(queued.get(), ferry::call_cancelled);
  CHECK(group[0].rpc_sync<pass_by>("worker1") == 1);
  busy.open();
  occupied.get();
  group[0].rpc_sync<note_run>("worker1");  // one after the other
  CHECK(runs == 1);
}

}  // namespace early_cancellation_test