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
  dropped_.resize(static_cast<std::size_t>(device_count()));
  made_.resize(static_cast<std::size_t>(device_count()));
  if (const char* text = std::getenv("FERRY_FAKE_CUDA_QUEUES"))
    hardware_queues_ = static_cast<unsigned>(std::atoi(text));
  for (int device = 0; device != device_count(); ++device) legacy_.push_back(add_stream(device, true, true));
  // The last one calls the functions of the host, as the one thread that the runtime has for them.
  for (int i = 0; i != threads + 1; ++i) {
    std::thread([this, i] {
      is_worker = true;
      work(i == threads);
    }).detach();
  }
}

CUstream_st* executor::add_stream(int device, bool blocking, bool legacy) {
  streams_.push_back(std::make_unique<CUstream_st>());
  CUstream_st* stream = streams_.back().get();
  stream->device = device;
  stream->blocking = blocking;
  stream->legacy = legacy;
  stream->number = made_[static_cast<std::size_t>(device)]++;
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

marker_ptr executor::push(CUstream_st* stream, std::function<void()> run, std::vector<marker_ptr> needs,
                          bool on_host_thread) {
  if (dropped_[static_cast<std::size_t>(stream->device)]) {
    auto nothing = std::make_shared<marker>();
    nothing->done = true;
    nothing->number = ++queued_;
    return nothing;
  }
  if (stream->legacy) {
    for (const auto& other : streams_) {
      if (other->device == stream->device && other->blocking && other->last) needs.push_back(other->last);
    }
  } else if (stream->blocking) {
    if (const marker_ptr& last = legacy(stream->device)->last) needs.push_back(last);
  }
  auto end = std::make_shared<marker>();
  if (stream->queue.empty()) stream->begins = some_time(clock::now());
  end->number = ++queued_;
  stream->queue.push_back({std::move(needs), std::move(run), end, queued_, on_host_thread});
  stream->last = end;
  stream->touched = ++ticks_;
  work_.notify_all();
  return end;
}

marker_ptr executor::enqueue(CUstream_st* stream, std::function<void()> run, std::vector<marker_ptr> needs,
                             bool on_host_thread) {
  const std::lock_guard lock(mutex_);
  return push(stream, std::move(run), std::move(needs), on_host_thread);
}

void executor::reach(const marker_ptr& place) {
  const std::lock_guard lock(mutex_);
  place->done = true;
  place->at = clock::now();
  work_.notify_all();
  progress_.notify_all();
}

void executor::drop(int device) {
  std::vector<operation> gone;  // destroyed without the lock
  std::unique_lock lock(mutex_);
  dropped_[static_cast<std::size_t>(device)] = true;
  for (const auto& stream : streams_) {
    if (stream->device != device) continue;
    // What runs stays: its thread takes it away.
    while (stream->queue.size() > (stream->running ? 1U : 0U)) {
      gone.push_back(std::move(stream->queue.back()));
      stream->queue.pop_back();
    }
  }
  work_.notify_all();
  // What has been dropped counts as done, and with it what it would have freed: nothing may write there any more.
  progress_.wait_for(lock, limit, [&] {
    return std::none_of(streams_.begin(), streams_.end(), [&](const auto& each) {
      return each->device == device && each->running && !each->queue.front().on_host_thread;
    });
  });
  for (const operation& each : gone) each.end->done = true;
  work_.notify_all();
  progress_.notify_all();
  lock.unlock();
}

void executor::mend() {
  const std::lock_guard lock(mutex_);
  dropped_.assign(dropped_.size(), false);
}

bool executor::wait_for_device(int device) {
  std::unique_lock lock(mutex_);
  std::vector<marker_ptr> last;
  for (const auto& stream : streams_) {
    if (stream->device == device && stream->last) last.push_back(stream->last);
  }
  return progress_.wait_for(lock, limit, [&] {
    return std::all_of(last.begin(), last.end(), [](const marker_ptr& each) { return each->done; });
  });
}

void executor::set_hardware_queues(unsigned queues) {
  const std::lock_guard lock(mutex_);
  hardware_queues_ = queues;
  work_.notify_all();
}

// Streams that share a queue of the hardware are worked off in the order in which the program queued things.
bool executor::behind_another(const CUstream_st& stream) const {
  if (hardware_queues_ == 0) return false;
  const auto queue_of = [&](const CUstream_st& each) { return static_cast<unsigned>(each.number) % hardware_queues_; };
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& each) {
    return each.get() != &stream && each->device == stream.device && !each->queue.empty() &&
           queue_of(*each) == queue_of(stream) && each->queue.front().number < stream.queue.front().number;
  });
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

executor::clock::time_point executor::time_of(const marker_ptr& place) {
  const std::lock_guard lock(mutex_);
  return place->at;
}

bool executor::idle(const CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  const auto done = [](const CUstream_st& each) { return !each.last || each.last->done; };
  return done(*stream) && (!stream->legacy || std::all_of(streams_.begin(), streams_.end(), [&](const auto& each) {
           return each->device != stream->device || !each->blocking || done(*each);
         }));
}

std::uint64_t executor::queued() {
  const std::lock_guard lock(mutex_);
  return queued_;
}

void executor::observe(CUstream_st* stream, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  for (const auto& each : streams_) {
    const bool included = stream->legacy && each->blocking && each->device == stream->device;
    if (each.get() == stream || included) each->observed = std::max(each->observed, number);
  }
}

bool executor::observed(const CUstream_st* stream, const marker_ptr& place) {
  const std::lock_guard lock(mutex_);
  return place->done && place->number <= stream->observed;
}

void executor::follow(CUstream_st* stream, CUstream_st* other, const marker_ptr& place) {
  const std::lock_guard lock(mutex_);
  std::uint64_t& number = stream->follows[other];
  number = std::max(number, place->number);
}

bool executor::follows(const CUstream_st* stream, CUstream_st* other, const marker_ptr& place) {
  const std::lock_guard lock(mutex_);
  const auto found = stream->follows.find(other);
  return found != stream->follows.end() && place->number <= found->second;
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

bool executor::busy() {
  const std::lock_guard lock(mutex_);
  return running_ != 0 ||
         std::any_of(streams_.begin(), streams_.end(), [](const auto& each) { return !each->queue.empty(); });
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

CUstream_st* executor::pick(clock::time_point now, clock::time_point& earliest, bool host_functions) {
  std::vector<CUstream_st*> ready;
  earliest = clock::time_point::max();
  // The item that comes first by a rule is also done first.
  if (pauses_ != 0 || (schedule_ != schedule::random && running_ != 0)) return nullptr;
  for (const auto& stream : streams_) {
    if (stream->running || stream->queue.empty()) continue;
    const operation& next = stream->queue.front();
    if (behind_another(*stream)) continue;
    // By a rule, the one that comes first is chosen whichever thread asks; without one, each thread looks for its own.
    if (schedule_ == schedule::random && next.on_host_thread != host_functions) continue;
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
  if (schedule_ == schedule::random) return ready[random_() % ready.size()];
  CUstream_st* const first = schedule_ == schedule::newest_first ? *std::max_element(ready.begin(), ready.end(), older)
                                                                 : *std::min_element(ready.begin(), ready.end(), older);
  return first->queue.front().on_host_thread == host_functions ? first : nullptr;
}

void executor::work(bool host_functions) {
  keep_memory_open();
  std::unique_lock lock(mutex_);
  for (;;) {
    clock::time_point earliest;
    CUstream_st* stream = pick(clock::now(), earliest, host_functions);
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
    next.end->at = clock::now();
    stream->begins = some_time(clock::now());
    work_.notify_all();
    progress_.notify_all();
  }
}

}  // namespace fake_cuda
