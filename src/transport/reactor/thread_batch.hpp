#pragma once

// The work that a reactor thread has collected and has yet to run, and the connections that it writes at the end.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include <ferry/base/work.hpp>
#include <ferry/transport/reactor.hpp>

namespace ferry::inline v0::detail {

/// Items linked by work::next.
struct work_list {
  work* head = nullptr;
  work* tail = nullptr;
  std::size_t count = 0;

  void append(const work_list& more) noexcept {
    if (!more.head) return;
    (tail ? tail->next : head) = more.head;
    tail = more.tail;
    count += more.count;
  }
};

/// Belongs to one thread, the owner; the monitor takes from it what the owner does not come to. What is not marked
/// otherwise is for the owner alone. The first item of a batch, most often the only one, takes no lock.
class thread_batch {
 public:
  /// `running`: from within an item, behind which this one waits.
  void push(work* item, bool running) noexcept {
    item->next = nullptr;
    if (!running && empty()) return first_.store(item, std::memory_order_release);
    const std::lock_guard lock(mutex_);
    (rest_.tail ? rest_.tail->next : rest_.head) = item;
    rest_.tail = item;
    set_count(rest_.count + 1);
  }
  /// The next item; null if there is none, or no more.
  work* pop() noexcept {
    if (first_.load(std::memory_order_relaxed)) {
      if (work* item = first_.exchange(nullptr, std::memory_order_acquire)) return item;
    }
    const std::lock_guard lock(mutex_);
    work* item = rest_.head;
    if (!item) return nullptr;
    rest_.head = item->next;
    if (!rest_.head) rest_.tail = nullptr;
    set_count(rest_.count - 1);
    return item;
  }
  [[nodiscard]] bool empty() const noexcept { return !first_.load(std::memory_order_relaxed) && !has_rest(); }
  /// Items behind the first.
  [[nodiscard]] bool has_rest() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  work_list take_all() noexcept {
    const std::lock_guard lock(mutex_);
    return take_locked();
  }

  /// The item is flushed when the batch has been run, or by the monitor; false if the batch is empty, or without memory.
  bool cork(const std::shared_ptr<deferred_io>& item) noexcept {
    const std::lock_guard lock(mutex_);
    if (!rest_.head && !first_.load(std::memory_order_relaxed)) return false;
    try {
      corked_.push_back(item);
    } catch (const std::bad_alloc&) {
      return false;
    }
    has_corked_.store(true, std::memory_order_relaxed);
    return true;
  }
  void flush_corked() noexcept {
    if (!has_corked_.load(std::memory_order_relaxed)) return;
    std::vector<std::shared_ptr<deferred_io>> corked;
    {
      const std::lock_guard lock(mutex_);
      corked.swap(corked_);
      has_corked_.store(false, std::memory_order_relaxed);
    }
    for (auto& item : corked) item->flush();
    corked.clear();
    const std::lock_guard lock(mutex_);
    if (corked_.empty()) corked_.swap(corked);  // keeps the capacity
  }

  /// An item begins to run.
  void note_progress() noexcept { progress_.fetch_add(1, std::memory_order_relaxed); }
  /// By the monitor: takes what is corked, and all items if none has begun since the last look. True if there was anything.
  bool inspect(std::vector<std::shared_ptr<deferred_io>>& corked, work_list& stuck) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t progress = progress_.load(std::memory_order_relaxed);
    const bool holds = rest_.head || first_.load(std::memory_order_relaxed) || !corked_.empty();
    // Bounds the delay of corked writes to one tick, also behind a very long batch.
    for (auto& item : corked_) corked.push_back(std::move(item));
    corked_.clear();
    has_corked_.store(false, std::memory_order_relaxed);
    if (std::exchange(seen_progress_, progress) == progress && holds) stuck.append(take_locked());
    return holds;
  }

 private:
  void set_count(std::size_t count) noexcept {
    rest_.count = count;
    count_.store(count, std::memory_order_relaxed);
  }
  work_list take_locked() noexcept {
    work_list all;
    if (work* first = first_.exchange(nullptr, std::memory_order_acquire)) all = {first, first, 1};
    all.append(std::exchange(rest_, {}));
    set_count(0);
    return all;
  }

  std::atomic<work*> first_{nullptr};  // stored by the owner, while the batch is empty
  std::atomic<std::size_t> count_{0};  // of rest_; written with mutex_ held
  std::atomic<bool> has_corked_{false};
  std::atomic<std::uint64_t> progress_{0};
  std::mutex mutex_;  // guards what follows
  work_list rest_;
  std::vector<std::shared_ptr<deferred_io>> corked_;
  std::uint64_t seen_progress_ = 0;
};

}  // namespace ferry::inline v0::detail
