#pragma once

// What the tests of dynamic groups share.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "processes.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace dynamic_group_test {

using namespace std::chrono_literals;

inline ferry::worker_config config_of(const std::string& meeting, const std::string& name, int rank = ferry::any_rank) {
  return {.name = name,
          .rank = rank,
          .init_method = meeting,
          .rpc_timeout = 100s,
          .heartbeat_interval = 100ms,
          .lease = 5s,
          .exit_timeout = 100s};
}

// Stops processes while none of them can hold the lock of their file store, which all others would wait for.
inline void stop_outside_of_store(const std::string& store, const std::vector<const ferry_test::child_process*>& all) {
  const int file = ::open(store.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(file >= 0);
  REQUIRE(::flock(file, LOCK_EX) == 0);
  for (const auto* each : all) each->stop();
  ::close(file);
}

inline std::vector<std::string> names_of(const std::vector<ferry::worker_info>& workers) {
  std::vector<std::string> result;
  for (const auto& each : workers) result.push_back(each.name());
  std::sort(result.begin(), result.end());
  return result;
}

inline std::string text_of(const ferry::member_event& event) {
  switch (event.what) {
    case ferry::member_event::kind::joined: return event.who.name() + " joined";
    case ferry::member_event::kind::left: return event.who.name() + " left";
    case ferry::member_event::kind::lost: return event.who.name() + " lost";
    case ferry::member_event::kind::fenced: return event.who.name() + " fenced";
  }
  return {};
}

// What a worker is told of the others.
class events {
 public:
  explicit events(const ferry::worker& worker) {
    worker.on_member_event([state = state_](const ferry::member_event& event) {
      const std::lock_guard lock(state->mutex);
      state->all.push_back(text_of(event));
      state->more.notify_all();
    });
  }
  /// Blocks until it has come, and takes everything up to it.
  std::vector<std::string> up_to(const std::string& last) {
    std::unique_lock lock(state_->mutex);
    state_->more.wait(lock,
                      [&] { return std::find(state_->all.begin(), state_->all.end(), last) != state_->all.end(); });
    const auto end = std::find(state_->all.begin(), state_->all.end(), last) + 1;
    std::vector<std::string> result(state_->all.begin(), end);
    state_->all.erase(state_->all.begin(), end);
    return result;
  }

 private:
  struct shared {
    std::mutex mutex;
    std::condition_variable more;
    std::deque<std::string> all;
  };
  std::shared_ptr<shared> state_ = std::make_shared<shared>();
};

struct meeting_place {
  ferry_test::watchdog dog{"a test with a dynamic group"};
  ferry_test::temporary_directory directory;
  std::string method = "file://" + directory.file("store");
};

// A process of the role "newcomer" (dynamic_group_test.cpp), once it has joined.
inline std::unique_ptr<ferry_test::child_process> start_newcomer(const std::string& meeting, const std::string& name,
                                                                 int rank = ferry::any_rank, int lease = 5000) {
  auto child = std::make_unique<ferry_test::child_process>(ferry_test::child_options{
      .role = "newcomer", .arguments = {meeting, name, std::to_string(rank), std::to_string(lease)}});
  REQUIRE(child->read_line() == "joined");
  return child;
}

inline std::string ask(ferry_test::child_process& child, const std::string& line) {
  child.write_line(line);
  return child.read_line();
}

}  // namespace dynamic_group_test
