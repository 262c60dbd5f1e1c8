#include "calls_in_flight.hpp"

#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include <ferry/ferry.hpp>

#include "handlers.hpp"
#include "worker_pair.hpp"

namespace ferry_bench {

double per_second(std::size_t calls, clock::time_point started) {
  return static_cast<double>(calls) / std::chrono::duration<double>(clock::now() - started).count();
}

namespace {

// Calls that start each other. Each chain has its own counter, on a separate cache line.
class chains {
 public:
  explicit chains(const ferry::worker& caller) : caller_(caller) {}

  double run(std::chrono::nanoseconds window) {
    const auto started = clock::now();
    until_ = started + window;
    {
      std::lock_guard lock(mutex_);
      running_ = in_flight;
    }
    for (chain& one : chains_) {
      one.calls = 0;
      next(one);
    }
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return running_ == 0; });
    if (failure_) std::rethrow_exception(failure_);
    std::size_t calls = 0;
    for (const chain& one : chains_) calls += one.calls;
    return per_second(calls, started);
  }

 private:
  struct alignas(64) chain {
    std::size_t calls = 0;
  };

  void next(chain& one) {
    try {
      caller_.rpc_async<remote::add>(callee, 1, 2).add_done_callback([this, &one](const ferry::future<int>& result) {
        if (result.failed()) return end(result.error());
        ++one.calls;
        // Reading the clock at every call would add cost of the benchmark itself.
        if (one.calls % 16 == 0 && clock::now() >= until_) return end(nullptr);
        next(one);
      });
    } catch (...) {
      end(std::current_exception());
    }
  }

  void end(const std::exception_ptr& failure) {
    std::lock_guard lock(mutex_);
    if (failure) failure_ = failure;
    if (--running_ == 0) ended_.notify_one();
  }

  const ferry::worker& caller_;
  clock::time_point until_;
  std::array<chain, in_flight> chains_{};
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t running_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

double continuations(const ferry::worker& caller, std::chrono::nanoseconds window) {
  return chains(caller).run(window);
}

double futures(const ferry::worker& caller, std::chrono::nanoseconds window) {
  std::array<ferry::future<int>, in_flight> ring;
  const auto started = clock::now();
  for (auto& one : ring) one = caller.rpc_async<remote::add>(callee, 1, 2);
  std::size_t calls = 0;
  do {
    for (auto& one : ring) {
      std::move(one).get();
      one = caller.rpc_async<remote::add>(callee, 1, 2);
      ++calls;
    }
  } while (clock::now() - started < window);
  for (auto& one : ring) {
    std::move(one).get();
    ++calls;
  }
  return per_second(calls, started);
}

}  // namespace ferry_bench
