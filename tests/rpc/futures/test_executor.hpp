#pragma once

// Executors for tests of futures and tasks: one driven by hand, one with threads.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ferry/rpc/context.hpp>

namespace ferry_test {

/// First in, first out.
class work_queue {
 public:
  void push(ferry::work* item) noexcept {
    item->next = nullptr;
    (tail_ ? tail_->next : head_) = item;
    tail_ = item;
  }
  ferry::work* pop() noexcept {
    ferry::work* item = head_;
    if (item) head_ = item->next;
    if (!head_) tail_ = nullptr;
    return item;
  }
  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }

 private:
  ferry::work* head_ = nullptr;
  ferry::work* tail_ = nullptr;
};

/// Runs posted work only when told to. One thread.
class manual_executor final : public ferry::executor {
 public:
  void post(ferry::work* item) noexcept override { queue_.push(item); }
  /// Runs what is posted, and what that posts; returns how many.
  int run() {
    int count = 0;
    while (ferry::work* item = queue_.pop()) {
      item->run(item);
      ++count;
    }
    return count;
  }

 private:
  work_queue queue_;
};

/// A few threads. The last owner may be work that runs on one of them: then that thread ends on its own.
class pool_executor final : public ferry::executor {
 public:
  explicit pool_executor(int threads = 2) : shared_(std::make_shared<shared>()) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([shared = shared_] { serve(*shared); });
  }
  ~pool_executor() override {
    {
      std::lock_guard lock(shared_->mutex);
      shared_->stopping = true;
    }
    shared_->changed.notify_all();
    for (auto& thread : threads_) {
      if (thread.get_id() == std::this_thread::get_id()) {
        thread.detach();
      } else {
        thread.join();
      }
    }
  }
  void post(ferry::work* item) noexcept override {
    {
      std::lock_guard lock(shared_->mutex);
      shared_->queue.push(item);
    }
    shared_->changed.notify_one();
  }
  [[nodiscard]] bool owns_this_thread() const {
    for (const auto& thread : threads_) {
      if (thread.get_id() == std::this_thread::get_id()) return true;
    }
    return false;
  }

 private:
  struct shared {
    std::mutex mutex;
    std::condition_variable changed;
    work_queue queue;
    bool stopping = false;
  };
  static void serve(shared& self) {
    std::unique_lock lock(self.mutex);
    for (;;) {
      self.changed.wait(lock, [&] { return self.stopping || !self.queue.empty(); });
      ferry::work* item = self.queue.pop();
      if (!item) return;
      lock.unlock();
      item->run(item);
      lock.lock();
    }
  }

  std::shared_ptr<shared> shared_;
  std::vector<std::thread> threads_;
};

/// A context whose continuations run on `threads`; entered while it lives.
class entered_context {
 public:
  explicit entered_context(std::shared_ptr<ferry::executor> threads)
      : context_(new ferry::call_context(std::move(threads))), scope_(context_) {}
  [[nodiscard]] ferry::call_context* get() const { return context_.get(); }

 private:
  ferry::context_ptr context_;
  ferry::context_scope scope_;
};

}  // namespace ferry_test
