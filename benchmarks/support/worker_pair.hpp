#pragma once

// A worker in this process and one that it calls, in a child process or (transport "inproc") in this one.

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <ferry/ferry.hpp>

#include "affinity.hpp"
#include "process.hpp"

namespace ferry_bench {

/// Roles for run_role().
std::map<std::string, role> worker_roles();

struct pair_options {
  std::string transport = "tcp";
  bool sleeping = false;   ///< transport.max_spin = 0: both sides sleep whenever they wait
  bool busy_poll = false;  ///< transport.busy_poll = 1: both sides never sleep
  ferry::timeout heartbeat_interval = std::chrono::milliseconds(500);
  ferry::timeout lease = std::chrono::seconds(5);
  int flight_events = ferry::rpc_options{}.flight_events;
  int idle_interceptors = 0;  ///< of both workers: each sees every call, and keeps nothing of it
  bool third = false;         ///< another process that serves: worker `third`, pinned as the callee is
  bool bystander = false;  ///< a third process whose calls block a handler of the callee for 100 ms each, all the time
};

class worker_pair {
 public:
  worker_pair(const pair_options& wanted, pin_mode pin);
  ~worker_pair();
  worker_pair(const worker_pair&) = delete;
  worker_pair& operator=(const worker_pair&) = delete;

  [[nodiscard]] const ferry::worker& caller() const noexcept { return caller_; }
  /// Of the callee's process; 0 if that is this one.
  [[nodiscard]] pid_t callee_process() const noexcept { return within_ ? 0 : callee_process_.id(); }
  /// Sends a signal to the callee's process.
  void signal_callee(int number) noexcept { callee_process_.signal(number); }
  /// Pins again: threads shared with earlier workers may have been pinned differently.
  void pin();

 private:
  pin_mode pin_;
  bool within_;
  ferry::worker caller_;
  ferry::worker callee_;  // within this process
  child_process callee_process_;
  child_process bystander_;
  child_process third_;
};

/// The name that the caller calls.
inline constexpr const char* callee = "callee";
inline constexpr const char* third = "third";

}  // namespace ferry_bench
