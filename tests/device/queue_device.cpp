#include "queue_device.hpp"

#include <array>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <queue>
#include <thread>

// Queues and marks count queued and completed work; one lock for all.
struct work_queue {
  std::queue<std::function<void()>> waiting;
  std::uint64_t given = 0;
  std::uint64_t done = 0;
  bool has_thread = false;
};
struct work_mark {
  work_queue* queue = nullptr;
  std::uint64_t place = 0;
};

namespace {

struct shared_state {
  std::mutex mutex;
  std::condition_variable changed;
  std::array<work_queue, 3> default_queues;
};
// Never destroyed: the threads of the queues are never joined.
shared_state& state() {
  static auto* const all = new shared_state;
  return *all;
}

void serve(work_queue* queue) {
  std::unique_lock lock(state().mutex);
  for (;;) {
    state().changed.wait(lock, [&] { return !queue->waiting.empty(); });
    const std::function<void()> next = std::move(queue->waiting.front());
    queue->waiting.pop();
    lock.unlock();
    next();
    lock.lock();
    ++queue->done;
    state().changed.notify_all();
  }
}

void push(work_queue* queue, std::function<void()> work) {
  const std::lock_guard lock(state().mutex);
  if (!queue->has_thread) std::thread(serve, queue).detach();
  queue->has_thread = true;
  queue->waiting.push(std::move(work));
  ++queue->given;
  state().changed.notify_all();
}

void wait_for(work_mark mark) {
  std::unique_lock lock(state().mutex);
  state().changed.wait(lock, [&] { return !mark.queue || mark.queue->done >= mark.place; });
}

thread_local int current_index = 0;

}  // namespace

using traits = ferry::device_traits<queue_device>;

int traits::current() noexcept { return current_index; }
void traits::make_current(int index) { current_index = index; }
void traits::restore_current(int former) noexcept { current_index = former; }
void* traits::allocate(device, std::size_t bytes, work_queue*) { return ::operator new(bytes, std::align_val_t{64}); }
void traits::deallocate(device, void* memory, std::size_t, work_queue* queue) noexcept {
  push(queue, [memory] { ::operator delete(memory, std::align_val_t{64}); });
}
work_queue* traits::default_stream(device where) noexcept {
  return &state().default_queues[static_cast<std::size_t>(where.index) % state().default_queues.size()];
}
// The queue exists as long as its thread: the streams of a pool are never destroyed.
work_queue* traits::create_stream(device) {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<work_queue>>;
  const std::lock_guard lock(mutex);
  return all->emplace_back(std::make_unique<work_queue>()).get();
}
void traits::destroy_stream(device, work_queue*) noexcept {}
bool traits::stream_done(device, work_queue* queue) {
  const std::lock_guard lock(state().mutex);
  return queue->done == queue->given;
}
void traits::synchronize_stream(device where, work_queue* queue) {
  work_mark mark;
  record_event(where, &mark, queue);
  wait_for(mark);
}
void traits::call_on_host(device, work_queue* queue, void (*function)(void*), void* argument) {
  push(queue, [function, argument] { function(argument); });
}
work_mark* traits::create_event(device) { return new work_mark; }
void traits::destroy_event(device, work_mark* mark) noexcept { delete mark; }
void traits::record_event(device, work_mark* mark, work_queue* queue) {
  const std::lock_guard lock(state().mutex);
  *mark = {queue, queue->given};
}
void traits::wait_event(device, work_queue* queue, work_mark* mark) {
  push(queue, [place = *mark] { wait_for(place); });
}
bool traits::event_done(device, work_mark* mark) {
  const std::lock_guard lock(state().mutex);
  return !mark->queue || mark->queue->done >= mark->place;
}
void traits::synchronize_event(device, work_mark* mark) { wait_for(*mark); }
void traits::copy(device, void* target, device, const void* source, std::size_t bytes, device, work_queue* queue) {
  push(queue, [=] { std::memcpy(target, source, bytes); });
}
void traits::fill(device, void* memory, unsigned char value, std::size_t bytes, work_queue* queue) {
  push(queue, [=] { std::memset(memory, value, bytes); });
}
