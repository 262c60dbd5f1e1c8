// Futures, coroutines, timeouts and cancellation.   ferry-run -n 3 ./03_async

#include <ferry/ferry.hpp>

#include <chrono>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;

int square(int x) { return x * x; }

// A coroutine as handler: while it waits for the next worker it holds no thread, however many of them are under way.
ferry::task<std::string> travel(int hops) {
  const ferry::worker_info here = ferry::get_worker_info();
  if (hops == 0) co_return here.name();
  const auto next = (here.id().value + 1) % static_cast<int>(ferry::get_worker_infos().size());
  std::string rest = co_await ferry::rpc_async<travel>(next, hops - 1);
  co_return here.name() + " -> " + rest;
}

// A handler may also return a future: here that of another call, changed on its way back.
ferry::future<int> square_elsewhere(int x) {
  return ferry::rpc_async<square>("worker2", x).then([](int squared) { return squared + 1; });
}

// Waits until its caller no longer does: that has cancelled, timed out or gone away.
void wait_for_caller() {
  std::mutex mutex;
  std::condition_variable_any condition;
  std::unique_lock lock(mutex);
  condition.wait(lock, ferry::this_call().stop_token(), [] { return false; });
}

ferry::task<int> sum_of_squares(int count) {
  std::vector<ferry::future<int>> squares;
  for (int i = 1; i <= count; ++i) squares.push_back(ferry::rpc_async<square>(i % 2 == 0 ? "worker1" : "worker2", i));
  int sum = 0;
  for (const int value : co_await ferry::when_all(std::move(squares))) sum += value;
  co_return sum;
}

bool run() {
  // Many calls under way at once, their results in order; sync_wait runs a coroutine from plain code.
  const int sum = ferry::sync_wait(sum_of_squares(10));
  std::cout << "1 + 4 + ... + 100 = " << sum << std::endl;

  const auto route = ferry::rpc_sync<travel>("worker1", 5);
  std::cout << "a call that travelled: " << route << std::endl;

  const int chained = ferry::rpc_sync<square_elsewhere>("worker1", 6);
  std::cout << "6 * 6 + 1 = " << chained << ", from worker2 by way of worker1" << std::endl;

  // Every call ends: by its own timeout (the default is the worker's, 60 s) ...
  bool timed_out = false;
  try {
    ferry::rpc_sync<wait_for_caller>({"worker1", {.timeout = 50ms}});
  } catch (const ferry::rpc_timeout& problem) {
    timed_out = true;
    std::cout << "as expected: " << problem.what() << std::endl;
  }

  // ... or because its caller cancels it; the callee sees both.
  std::stop_source source;
  const std::stop_token token = source.get_token();
  const ferry::future<void> cancelled = ferry::rpc_async<wait_for_caller>({"worker2", {.stop = token}});
  source.request_stop();
  bool was_cancelled = false;
  try {
    cancelled.get();
  } catch (const ferry::call_cancelled& problem) {
    was_cancelled = true;
    std::cout << "as expected: " << problem.what() << std::endl;
  }

  return sum == 385 && route == "worker1 -> worker2 -> worker0 -> worker1 -> worker2 -> worker0" && chained == 37 &&
         timed_out && was_cancelled;
}

int main() {
  ferry::worker self = ferry::init_rpc();
  const bool right = self.id().value != 0 || run();
  self.shutdown();
  return right ? 0 : 1;
}
