#pragma once

// The streams of the double, and the threads that work them off.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
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
  std::uint64_t number = 0;                  // of all that were queued
  std::chrono::steady_clock::time_point at;  // when it was done; not set for what was dropped
};
using marker_ptr = std::shared_ptr<marker>;

struct operation {
  std::vector<marker_ptr> needs;
  std::function<void()> run;
  marker_ptr end;
  std::uint64_t number = 0;     // of all that were queued
  bool on_host_thread = false;  // a function of the host
};

/// A graph that is being made of what streams are given.
struct capture {
  int mode = 0;            // cudaStreamCaptureMode
  std::thread::id thread;  // that began it
  CUstream_st* origin = nullptr;
  bool invalid = false;
  bool over = false;
  std::size_t nodes = 0;
  std::map<CUstream_st*, bool>
      joined;  // the streams of it, and whether the others have waited for all that each was given
};
using capture_ptr = std::shared_ptr<capture>;

}  // namespace fake_cuda

struct CUstream_st {
  int device = 0;
  bool blocking = false;  // ordered with the legacy default stream of its device
  bool legacy = false;
  std::deque<fake_cuda::operation> queue;
  fake_cuda::marker_ptr last;  // the end of what it was given; null if nothing
  bool running = false;
  bool destroyed = false;
  int number = 0;                    // among the streams of its device: it has the hardware queue of this number
  fake_cuda::capture_ptr capturing;  // under the lock of captures.cpp
  std::uint64_t touched = 0;         // when it was last given something
  std::uint64_t observed = 0;        // the host has synchronized with what it was given up to this number
  std::map<CUstream_st*, std::uint64_t> follows;  // it waits for what others were given up to these numbers
  std::chrono::steady_clock::time_point begins;
  std::atomic<bool> freed{false};   // memory was freed on it
  std::atomic<bool> worked{false};  // it was given something else, too, apart from events
  [[nodiscard]] bool only_frees() const noexcept { return freed.load() && !worked.load(); }
};

struct CUevent_st {
  int device = 0;
  fake_cuda::marker_ptr captured;  // null: never recorded
  fake_cuda::capture_ptr within;   // recorded in a stream that was being captured
  CUstream_st* recorded_on = nullptr;
  bool for_waiting = false;
  bool timed = false;     // keeps the time at which it was reached
  bool of_frees = false;  // marks nothing but frees: nothing is stale without it
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
  marker_ptr enqueue(CUstream_st* stream, std::function<void()> run, std::vector<marker_ptr> needs = {},
                     bool on_host_thread = false);
  /// Something else than a stream has come to a place that was made by itself.
  void reach(const marker_ptr& place);
  /// The device has failed: what is queued is dropped, and so is what comes, until mend().
  void drop(int device);
  void mend();
  /// Waits until nothing that was begun on the device runs, nor anything that was queued on it before: what a creation waits
  /// for. False if that takes longer than a minute.
  bool wait_for_device(int device);
  void set_hardware_queues(unsigned queues);
  /// The end of what the stream was given; null if nothing.
  marker_ptr position(CUstream_st* stream);
  bool done(const marker_ptr& place);
  /// When it was done, which it is.
  std::chrono::steady_clock::time_point time_of(const marker_ptr& place);
  /// Whether all is done that position() would stand for.
  bool idle(const CUstream_st* stream);
  /// The number of what was queued last.
  std::uint64_t queued();
  /// The host has synchronized with what the stream was given up to this number.
  void observe(CUstream_st* stream, std::uint64_t number);
  bool observed(const CUstream_st* stream, const marker_ptr& place);
  /// `stream` waits for an event that marks `place` in `other`.
  void follow(CUstream_st* stream, CUstream_st* other, const marker_ptr& place);
  bool follows(const CUstream_st* stream, CUstream_st* other, const marker_ptr& place);
  /// False if it is not done within a minute.
  bool wait(const marker_ptr& place);
  bool drain();
  bool busy();

  void begin_pause();
  void end_pause();
  void set_schedule(schedule how);
  void set_delay(unsigned microseconds);

 private:
  using clock = std::chrono::steady_clock;
  executor();
  void work(bool host_functions);
  CUstream_st* pick(clock::time_point now, clock::time_point& earliest, bool host_functions);
  bool behind_another(const CUstream_st& stream) const;
  clock::time_point some_time(clock::time_point now);
  marker_ptr push(CUstream_st* stream, std::function<void()> run, std::vector<marker_ptr> needs,
                  bool on_host_thread = false);
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
  std::uint64_t queued_ = 0;
  unsigned hardware_queues_ = 0;  // of a device; 0: one for each stream
  std::vector<bool> dropped_;     // by device
  std::vector<int> made_;         // streams of each device
};

/// Whether this is a thread of the double.
bool on_executor() noexcept;

}  // namespace fake_cuda
