// A call that its caller gives up while the callee has no place for it yet.

#include <atomic>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "gate.hpp"

namespace early_cancellation_test {

ferry_test::gate busy;
ferry_test::gate ran;
std::atomic<bool> was_stopped{false};

void occupy() { busy.pass(); }
void note_stop() {
  was_stopped = ferry::this_call().stop_requested() && ferry::this_call().stop_token().stop_requested();
  ran.arrive();
}
int pass_by() { return 1; }

}  // namespace early_cancellation_test

// Answers on the thread that reads the connection, so its reply says that all frames before it have been read.
template <>
struct ferry::method_traits<&early_cancellation_test::pass_by> {
  static constexpr bool inline_handler = true;
};

namespace early_cancellation_test {

TEST_CASE("a call that is cancelled before its handler begins finds out when it begins") {
  busy.reset();
  ran.reset();
  ferry_test::cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  const ferry::future<void> occupied = group[0].rpc_async<occupy>("worker1");
  busy.await_arrivals(1);
  const ferry::future<void> queued = group[0].rpc_async<note_stop>("worker1");
  queued.cancel();
  CHECK_THROWS_AS(queued.get(), ferry::call_cancelled);
  CHECK(group[0].rpc_sync<pass_by>("worker1") == 1);
  busy.open();
  occupied.get();
  ran.await_arrivals(1);
  CHECK(was_stopped);
}

}  // namespace early_cancellation_test