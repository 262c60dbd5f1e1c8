#pragma once

// The streams of the double, and the threads that work them off.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "fake_cuda.hpp"

namespace fake_cuda {

/// A place in a stream: done when all before it is. Read and written under the executor's lock.
struct marker {
  bool done = false;
};
using marker_ptr = std::shared_ptr<marker>;

struct operation {
  std::vector<marker_ptr> needs;
  std::function<void()> run;
  marker_ptr end;
};

}  // namespace fake_cuda

struct CUstream_st {
  int device = 0;
  bool blocking = false;  // ordered with the legacy default stream of its device
  bool legacy = false;
  std::deque<fake_cuda::operation> queue;
  fake_cuda::marker_ptr last;  // the end of what it was given; null if nothing
  bool running = false;
  bool destroyed = false;
  std::uint64_t touched = 0;  // when it was last given something
  std::chrono::steady_clock::time_point begins;
};

struct CUevent_st {
  int device = 0;
  fake_cuda::marker_ptr captured;  // null: never recorded
};

namespace fake_cuda {

class executor {
 public:
  static executor& instance();

  CUstream_st* make_stream(int device);
  void destroy_stream(CUstream_st* stream);
  /// The legacy default stream of a device.
  CUstream_st* legacy(int device);
  [[nodiscard]] bool knows(const CUstream_st* stream);

  /// Queues `run`; returns its end.
  marker_ptr enqueue(CUstream_st* stream, std::function<void()> run, std::vector<marker_ptr> needs = {});
  /// The end of what the stream was given; null if nothing.
  marker_ptr position(CUstream_st* stream);
  bool done(const marker_ptr& place);
  /// Whether all is done that position() would stand for.
  bool idle(const CUstream_st* stream);
  /// False if it is not done within a minute.
  bool wait(const marker_ptr& place);
  bool drain();

  void begin_pause();
  void end_pause();
  void set_schedule(schedule how);
  void set_delay(unsigned microseconds);

 private:
  using clock = std::chrono::steady_clock;
  executor();
  void work();
  CUstream_st* pick(clock::time_point now, clock::time_point& earliest);
  clock::time_point some_time(clock::time_point now);
  marker_ptr push(CUstream_st* stream, std::function<void()> run, std::vector<marker_ptr> needs);
  CUstream_st* add_stream(int device, bool blocking, bool legacy);

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable progress_;
  std::vector<std::unique_ptr<CUstream_st>> streams_;
  std::vector<CUstream_st*> legacy_;
  std::minstd_rand random_;
  schedule schedule_ = schedule::random;
  unsigned delay_ = 200;
  int pauses_ = 0;
  int running_ = 0;
  std::uint64_t ticks_ = 0;
};

/// Whether this is a thread of the double.
bool on_executor() noexcept;

}  // namespace fake_cuda
