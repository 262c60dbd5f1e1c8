#include "executor.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "memory.hpp"

namespace fake_cuda {
namespace {

constexpr int threads = 2;
constexpr auto limit = std::chrono::minutes(1);
thread_local bool is_worker = false;

unsigned seed() {
  const char* text = std::getenv("FERRY_FAKE_CUDA_SEED");
  return text ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : std::random_device{}();
}

}  // namespace

bool on_executor() noexcept { return is_worker; }

// Never destroyed: streams may be used until the process ends.
executor& executor::instance() {
  static auto* const all = new executor;
  return *all;
}

executor::executor() {
  const unsigned value = seed();
  random_.seed(value);
  if (!std::getenv("FERRY_FAKE_CUDA_SEED") && std::getenv("FERRY_FAKE_CUDA_VERBOSE")) {
    std::fprintf(stderr, "FERRY_FAKE_CUDA_SEED=%u\n", value);
  }
  for (int device = 0; device != device_count(); ++device) legacy_.push_back(add_stream(device, true, true));
  for (int i = 0; i != threads; ++i) {
    std::thread([this] {
      is_worker = true;
      work();
    }).detach();
  }
}

CUstream_st* executor::add_stream(int device, bool blocking, bool legacy) {
  streams_.push_back(std::make_unique<CUstream_st>());
  CUstream_st* stream = streams_.back().get();
  stream->device = device;
  stream->blocking = blocking;
  stream->legacy = legacy;
  return stream;
}

CUstream_st* executor::make_stream(int device) {
  const std::lock_guard lock(mutex_);
  return add_stream(device, false, false);
}

void executor::destroy_stream(CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  stream->destroyed = true;  // what it was given is still done
}

CUstream_st* executor::legacy(int device) { return legacy_[static_cast<std::size_t>(device)]; }

bool executor::knows(const CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  return std::any_of(streams_.begin(), streams_.end(),
                     [&](const auto& each) { return each.get() == stream && !each->destroyed; });
}

executor::clock::time_point executor::some_time(clock::time_point now) {
  return delay_ == 0 ? now : now + std::chrono::microseconds(random_() % (delay_ + 1));
}

marker_ptr executor::push(CUstream_st* stream, std::function<void()> run, std::vector<marker_ptr> needs) {
  if (stream->legacy) {
    for (const auto& other : streams_) {
      if (other->device == stream->device && other->blocking && other->last) needs.push_back(other->last);
    }
  } else if (stream->blocking) {
    if (const marker_ptr& last = legacy(stream->device)->last) needs.push_back(last);
  }
  auto end = std::make_shared<marker>();
  if (stream->queue.empty()) stream->begins = some_time(clock::now());
  stream->queue.push_back({std::move(needs), std::move(run), end});
  stream->last = end;
  stream->touched = ++ticks_;
  work_.notify_all();
  return end;
}

marker_ptr executor::enqueue(CUstream_st* stream, std::function<void()> run, std::vector<marker_ptr> needs) {
  const std::lock_guard lock(mutex_);
  return push(stream, std::move(run), std::move(needs));
}

marker_ptr executor::position(CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  if (!stream->legacy) return stream->last;
  // The legacy default stream also stands for what all blocking streams were given.
  return push(stream, [] {}, {});
}

bool executor::done(const marker_ptr& place) {
  const std::lock_guard lock(mutex_);
  return !place || place->done;
}

bool executor::idle(const CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  const auto done = [](const CUstream_st& each) { return !each.last || each.last->done; };
  return done(*stream) && (!stream->legacy || std::all_of(streams_.begin(), streams_.end(), [&](const auto& each) {
           return each->device != stream->device || !each->blocking || done(*each);
         }));
}

bool executor::wait(const marker_ptr& place) {
  std::unique_lock lock(mutex_);
  return progress_.wait_for(lock, limit, [&] { return !place || place->done; });
}

bool executor::drain() {
  std::unique_lock lock(mutex_);
  return progress_.wait_for(lock, limit, [&] {
    return running_ == 0 &&
           std::all_of(streams_.begin(), streams_.end(), [](const auto& each) { return each->queue.empty(); });
  });
}

void executor::begin_pause() {
  std::unique_lock lock(mutex_);
  ++pauses_;
  progress_.wait(lock, [&] { return running_ == 0; });
}

void executor::end_pause() {
  const std::lock_guard lock(mutex_);
  --pauses_;
  work_.notify_all();
}

void executor::set_schedule(schedule how) {
  const std::lock_guard lock(mutex_);
  schedule_ = how;
}

void executor::set_delay(unsigned microseconds) {
  const std::lock_guard lock(mutex_);
  delay_ = microseconds;
}

CUstream_st* executor::pick(clock::time_point now, clock::time_point& earliest) {
  std::vector<CUstream_st*> ready;
  earliest = clock::time_point::max();
  // The item that comes first by a rule is also done first.
  if (pauses_ != 0 || (schedule_ != schedule::random && running_ != 0)) return nullptr;
  for (const auto& stream : streams_) {
    if (stream->running || stream->queue.empty()) continue;
    const operation& next = stream->queue.front();
    if (!std::all_of(next.needs.begin(), next.needs.end(), [](const marker_ptr& need) { return need->done; })) continue;
    // The order by a rule does not depend on the clock.
    if (schedule_ == schedule::random && stream->begins > now) {
      earliest = std::min(earliest, stream->begins);
      continue;
    }
    ready.push_back(stream.get());
  }
  if (ready.empty()) return nullptr;
  const auto older = [](const CUstream_st* a, const CUstream_st* b) { return a->touched < b->touched; };
  switch (schedule_) {
    case schedule::newest_first: return *std::max_element(ready.begin(), ready.end(), older);
    case schedule::oldest_first: return *std::min_element(ready.begin(), ready.end(), older);
    case schedule::random: break;
  }
  return ready[random_() % ready.size()];
}

void executor::work() {
  keep_memory_open();
  std::unique_lock lock(mutex_);
  for (;;) {
    clock::time_point earliest;
    CUstream_st* stream = pick(clock::now(), earliest);
    if (!stream) {
      if (earliest == clock::time_point::max()) {
        work_.wait(lock);
      } else {
        work_.wait_until(lock, earliest);
      }
      continue;
    }
    operation next = std::move(stream->queue.front());
    stream->running = true;
    ++running_;
    lock.unlock();
    next.run();
    next.run = nullptr;  // destroy what it holds before it is reported as done
    lock.lock();
    stream->queue.pop_front();
    stream->running = false;
    --running_;
    next.end->done = true;
    stream->begins = some_time(clock::now());
    work_.notify_all();
    progress_.notify_all();
  }
}

}  // namespace fake_cuda
