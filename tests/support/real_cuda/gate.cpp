#include "gate.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "lower.hpp"

namespace real_cuda {
namespace {

using clock = std::chrono::steady_clock;
namespace cuda_error = ferry::detail::cuda_error;

constexpr std::chrono::seconds longest_wait{60};
constexpr std::chrono::seconds longest_call{30};
constexpr std::size_t landing_size = std::size_t{4} << 20;

void need(int status, const char* what) {
  if (status == cuda_error::success) return;
  std::fprintf(stderr, "real_cuda: cannot %s: %s (CUDA error %d)\n", what, lower().get_error_string(status), status);
  std::abort();
}

bool finished(CUstream_st* stream) {
  const int status = lower().stream_query(stream);
  if (status == cuda_error::not_ready) return false;
  // A stream of a device that has failed does nothing more; the test meets the error at its own calls.
  return true;
}

class calls_in_progress {
 public:
  static calls_in_progress& instance() {
    static auto* const all = new calls_in_progress;
    return *all;
  }
  void add(const void* key, const char* name) {
    const std::lock_guard lock(mutex_);
    begun_[key] = {name, clock::now()};
  }
  void remove(const void* key) {
    const std::lock_guard lock(mutex_);
    begun_.erase(key);
  }

 private:
  struct entry {
    const char* name;
    clock::time_point begin;
  };
  calls_in_progress() {
    std::thread([this] { watch(); }).detach();
  }
  void watch() {
    for (;; std::this_thread::sleep_for(std::chrono::seconds(1))) {
      if (!gate::instance().closed()) continue;
      const std::lock_guard lock(mutex_);
      for (const auto& [key, each] : begun_) {
        if (clock::now() - each.begin < longest_call) continue;
        std::fprintf(
            stderr,
            "watchdog: %s has not come back for %lld s while all streams are held: the host waits for a device "
            "there\n",
            each.name, static_cast<long long>(longest_call.count()));
        std::abort();
      }
    }
  }
  std::mutex mutex_;
  std::map<const void*, entry> begun_;
};

}  // namespace

call_in_progress::call_in_progress(const char* name) { calls_in_progress::instance().add(this, name); }
call_in_progress::~call_in_progress() { calls_in_progress::instance().remove(this); }

// Never destroyed: streams may be used until the process ends.
gate& gate::instance() {
  static auto* const one = new gate;
  return *one;
}

int gate::make_stream(int device, CUstream_st** stream) {
  if (const int status = lower().stream_create(stream); status != cuda_error::success) return status;
  const std::lock_guard lock(mutex_);
  streams.add(*stream, device);
  if (pauses_.load() == 0) return cuda_error::success;
  hold(gpu_of(device));
  return lower().stream_wait_event(*stream, holders_[static_cast<std::size_t>(gpu_of(device))].end);
}

// What may wait for a device is done before one is held.
void gate::prepare() {
  const std::lock_guard lock(copying_);
  if (flag_) return;
  void* memory = nullptr;
  need(lower().host_alloc(&landing_, landing_size), "allocate page-locked memory");
  need(lower().host_alloc(&memory, sizeof(std::uint32_t)), "allocate page-locked memory");
  flag_ = static_cast<std::uint32_t*>(memory);
  *flag_ = 0;
}

// With mutex_ held.
void gate::hold(int gpu) {
  holder& of = holders_[static_cast<std::size_t>(gpu)];
  if (of.end) return;
  need(lower().set_device(gpu), "make a GPU current");
  need(lower().stream_create(&of.on), "create the stream that holds the others");
  need(lower().event_create(&of.end, false), "create an event");
  need(hold_stream(of.on, flag_, ticket_), "start the kernel that holds the streams");
  need(lower().event_record(of.end, of.on), "record an event");
}

void gate::close() {
  const std::unique_lock none_queues(queueing_);
  const std::lock_guard lock(mutex_);
  if (pauses_.load() != 0) {
    pauses_.fetch_add(1);
    return;
  }
  int former = 0;
  need(lower().get_device(&former), "ask for the current device");
  prepare();
  if (!wait_until_idle())
    std::fputs("real_cuda: a pause begins although a stream is not idle after a minute\n", stderr);
  ++ticket_;
  holders_.assign(static_cast<std::size_t>(gpus()), holder());
  for (const auto& [stream, device] : streams.all()) {
    const int gpu = gpu_of(device);
    hold(gpu);
    need(lower().set_device(gpu), "make a GPU current");
    need(lower().stream_wait_event(stream, holders_[static_cast<std::size_t>(gpu)].end), "hold a stream");
  }
  need(lower().set_device(former), "make a GPU current");
  pauses_.store(1);
}

void gate::open() {
  const std::lock_guard lock(mutex_);
  if (pauses_.fetch_sub(1) != 1) return;
  __atomic_store_n(flag_, ticket_, __ATOMIC_RELEASE);
  for (const holder& each : holders_) {
    if (!each.end) continue;
    while (!finished(each.on)) std::this_thread::yield();
    static_cast<void>(lower().event_destroy(each.end));
    static_cast<void>(lower().stream_destroy(each.on));
  }
  holders_.clear();
}

bool gate::idle() {
  const auto all = streams.all();
  return std::all_of(all.begin(), all.end(), [](const auto& each) { return finished(each.first); });
}

bool gate::wait_until_idle() {
  const auto until = clock::now() + longest_wait;
  for (;;) {
    bool idle = true;
    for (const auto& [stream, device] : streams.all()) {
      while (!finished(stream)) {
        idle = false;  // what it has done since may have given work to another one
        if (clock::now() > until) return false;
        std::this_thread::yield();
      }
    }
    if (idle) return true;
  }
}

int gate::copy_now(int device, void* to, const void* from, std::size_t bytes, bool to_host) {
  const ferry::detail::cuda_runtime& runtime = lower();
  const auto gpu = static_cast<std::size_t>(gpu_of(device));
  int former = 0;
  need(runtime.get_device(&former), "ask for the current device");
  need(runtime.set_device(gpu_of(device)), "make a GPU current");
  prepare();
  const std::lock_guard lock(copying_);
  if (copiers_.size() <= gpu) copiers_.resize(gpu + 1);
  if (!copiers_[gpu]) need(runtime.stream_create(&copiers_[gpu]), "create a stream");
  CUstream_st* const on = copiers_[gpu];
  int status = cuda_error::success;
  for (std::size_t done = 0; done != bytes && status == cuda_error::success;) {
    const std::size_t now = std::min(bytes - done, landing_size);
    auto* const target = static_cast<std::byte*>(to) + done;
    const auto* const source = static_cast<const std::byte*>(from) + done;
    if (!to_host) std::memcpy(landing_, source, now);
    status =
        to_host ? runtime.memcpy_async(landing_, source, now, on) : runtime.memcpy_async(target, landing_, now, on);
    if (status != cuda_error::success) break;
    while (!finished(on)) std::this_thread::yield();
    if (to_host) std::memcpy(target, landing_, now);
    done += now;
  }
  need(runtime.set_device(former), "make a GPU current");
  return status;
}

}  // namespace real_cuda
