#pragma once

// What holds all streams at once: each of them waits for an event behind one kernel that spins.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "shown.hpp"

namespace real_cuda {

class gate {
 public:
  static gate& instance();

  belongings<CUstream_st*> streams;

  /// Held by whatever queues work. A pause begins when none is.
  [[nodiscard]] std::shared_lock<std::shared_mutex> entrance() { return std::shared_lock(queueing_); }

  /// A stream of the shown device; of one that is new while there is a pause, the first thing is to wait for its end. Returns a
  /// cudaError_t.
  int make_stream(int device, CUstream_st** stream);
  /// Waits until what all streams were given is done, then lets them wait.
  void close();
  void open();
  [[nodiscard]] bool closed() const { return pauses_.load() != 0; }
  /// Whether all streams have done what they were given.
  bool idle();
  /// Waits for that; false if it is not so within a minute.
  bool wait_until_idle();

  /// Copies now, on a stream that the gate does not hold. Returns a cudaError_t.
  int copy_now(int device, void* to, const void* from, std::size_t bytes, bool to_host);

 private:
  void prepare();
  void hold(int gpu);

  std::shared_mutex queueing_;
  std::mutex mutex_;  // of pauses, and of what follows
  std::atomic<int> pauses_{0};
  std::uint32_t* flag_ = nullptr;  // page-locked: the ticket of the last pause that has ended
  std::uint32_t ticket_ = 0;
  struct holder {
    CUstream_st* on = nullptr;
    CUevent_st* end = nullptr;
  };
  std::vector<holder> holders_;  // of the GPUs that are held
  std::mutex copying_;
  std::vector<CUstream_st*> copiers_;  // of each GPU
  void* landing_ = nullptr;
};

/// Notes that this thread is in a call of the runtime. While all streams are held, a call that does not come back within 30 s ends
/// the process with its name: the host waits there for a device.
class call_in_progress {
 public:
  explicit call_in_progress(const char* name);
  call_in_progress(const call_in_progress&) = delete;
  call_in_progress& operator=(const call_in_progress&) = delete;
  ~call_in_progress();
};

}  // namespace real_cuda
