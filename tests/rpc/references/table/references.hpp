#pragma once

// Objects and functions for the tests of references.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ferry/ferry.hpp>
#include <ferry/test_kit/faulty.hpp>

#include "cluster.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace references_test {

int add(int a, int b);
int plus(const int& object, int more);
int refuse(const std::string& why);
int fetch(const ferry::rref<int>& ref);
ferry::rref<int> make_there(const std::string& where, int value);

class counter {
 public:
  explicit counter(int value) : value_(value) {}
  int add(int more) { return value_ += more; }
  [[nodiscard]] int value() const { return value_; }
  ferry::task<std::vector<int>> later(int count);

 private:
  std::atomic<int> value_;
};
int twice(const counter& c);

class pinned {
 public:
  explicit pinned(std::string text) : text_(std::move(text)) {}
  pinned(const pinned&) = delete;
  pinned& operator=(const pinned&) = delete;
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Counts its instances.
class tracked {
 public:
  explicit tracked(int value) : value_(value) { ++count(); }
  tracked(const tracked&) = delete;
  tracked& operator=(const tracked&) = delete;
  ~tracked() { --count(); }
  [[nodiscard]] int value() const { return value_; }
  static int alive() { return count().load(); }

 private:
  static std::atomic<int>& count();
  int value_;
};
int touch(const ferry::rref<tracked>& ref);

/// Waits until the condition holds; throws after 30 s.
template <class Condition>
void await(Condition&& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) throw std::runtime_error("the awaited condition did not become true");
    std::this_thread::yield();
  }
}
/// Waits until the worker's figure has that value; throws after 30 s.
void await_figure(const ferry::worker& worker, const char* name, const std::string& value);
/// Waits until no worker has objects, references, or controls in flight.
template <class Group>
void await_no_references(Group& group) {
  for (const char* figure : {"num_owner_rrefs", "num_forks", "num_expected_rrefs", "num_users", "num_pending_users",
                             "num_pending_children", "num_pending_futures"}) {
    for (int rank = 0; rank != group.size(); ++rank) await_figure(group[rank], figure, "0");
  }
}
/// The calls that a worker has made to another (or itself), those of the library included.
std::uint64_t calls_to(const ferry::worker& from, int to);

/// A group with injected message faults: each worker has its own injector, initially without rules.
class faulty_cluster {
 public:
  explicit faulty_cluster(int size, const std::function<void(ferry::worker_config&)>& configure = nullptr);
  /// Clears the faults and shuts down every worker that still runs gracefully; an error there is a failed check.
  ~faulty_cluster();
  faulty_cluster(const faulty_cluster&) = delete;
  faulty_cluster& operator=(const faulty_cluster&) = delete;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(workers_.size()); }
  [[nodiscard]] ferry::worker& operator[](int rank) { return workers_.at(static_cast<std::size_t>(rank)); }
  [[nodiscard]] ferry::fault_injector& faults(int rank) { return faults_.at(static_cast<std::size_t>(rank)); }

 private:
  ferry_test::temporary_directory directory_;
  ferry_test::watchdog watchdog_{"a test of references with faults"};
  std::vector<ferry::fault_injector> faults_;
  std::vector<ferry::worker> workers_;
};

/// Shuts all down at once; the error of each, in the order of the ranks.
template <class Group>
std::vector<std::exception_ptr> shut_down(Group& group, ferry::timeout limit) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(group.size()));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank != group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        group[rank].shutdown(true, limit);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  threads.clear();
  return errors;
}

}  // namespace references_test
