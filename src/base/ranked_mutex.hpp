#pragma once

// Mutexes with a rank. A thread takes them in increasing order of rank, so that no two threads can wait for each other.
// Builds without NDEBUG check the order whenever a mutex is locked, and end the process at the first violation, whether
// or not it leads to a deadlock in that run. With NDEBUG a ranked mutex is a std::mutex.

#include <condition_variable>
#include <mutex>

namespace ferry::inline v0::detail {

/// What is taken first has a lower rank. `name` is for the message.
struct lock_rank {
  int rank;
  const char* name;
};

#ifdef NDEBUG

class ranked_mutex : public std::mutex {
 public:
  explicit constexpr ranked_mutex(const lock_rank&) noexcept {}
};
using ranked_lock = std::unique_lock<std::mutex>;
using ranked_condition = std::condition_variable;

#else

/// The ranks that the current thread holds. Ends the process if `next` is not above all of them.
void push_rank(const lock_rank& next) noexcept;
void pop_rank(const lock_rank& released) noexcept;

class ranked_mutex {
 public:
  explicit constexpr ranked_mutex(const lock_rank& rank) noexcept : rank_(rank) {}
  ranked_mutex(const ranked_mutex&) = delete;
  ranked_mutex& operator=(const ranked_mutex&) = delete;
  ~ranked_mutex() = default;

  void lock() {
    push_rank(rank_);
    mutex_.lock();
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    push_rank(rank_);
    return true;
  }
  void unlock() {
    mutex_.unlock();
    pop_rank(rank_);
  }

 private:
  std::mutex mutex_;
  const lock_rank rank_;
};
/// To wait on a ranked_condition.
using ranked_lock = std::unique_lock<ranked_mutex>;
using ranked_condition = std::condition_variable_any;

#endif

}  // namespace ferry::inline v0::detail
