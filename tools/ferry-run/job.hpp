#pragma once

// The workers of one run, from their start to the status of the whole.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "flight_records.hpp"
#include "guard.hpp"
#include "meeting.hpp"
#include "options.hpp"
#include "output.hpp"
#include "process.hpp"

namespace ferry_run {

/// Starts the workers and supervises them. One per process: it takes over the process's signals.
class job {
 public:
  explicit job(options chosen);
  job(const job&) = delete;
  job& operator=(const job&) = delete;
  ~job();

  /// Waits for the other nodes if there are any, runs all workers to their end and returns the exit status of
  /// ferry-run. Throws meeting_error, and std::system_error if a system call that ferry-run itself needs fails.
  int run();

 private:
  using clock = std::chrono::steady_clock;
  struct worker {
    int rank = 0;
    pid_t pid = -1;
    bool running = false;
    source out;
    source err;
  };

  void take_signals();
  void start_workers();
  void step();  // waits for an event and handles it
  void on_signals();
  void pass_on(int signal);
  void reap();
  void ended(worker& one, int code, int status);
  void tell_flight_records(const worker& one);
  void failed(int status, const std::string& text);  // the first of this node counts; the other nodes are notified
  void on_meeting();                                 // whether another node has failed
  [[nodiscard]] std::string this_node() const;
  void end_workers();  // SIGTERM now, SIGKILL when the grace time has passed
  void kill_overdue();
  void signal_workers(int signal);
  void flush(sink& target);
  void say(const std::string& text) { errors_.add_line("ferry-run: ", text); }
  [[nodiscard]] int running() const;
  [[nodiscard]] bool may_write(const sink& target, const sink& other) const;
  [[nodiscard]] int wait_time() const;

  const std::filesystem::file_time_type started_at_ = std::filesystem::file_time_type::clock::now();
  options options_;
  placement place_;
  std::unique_ptr<meeting> meeting_;  // with several nodes
  inherited_state inherited_;
  std::optional<guard> guard_;
  int signals_ = -1;
  sink output_;
  sink errors_;
  bool same_target_;
  std::vector<worker> workers_;
  std::optional<int> status_;  // of the first failure
  std::optional<clock::time_point> kill_at_;
  bool ending_ = false;
  std::set<int> asked_with_;  // the signals by which the workers were told to end
  bool leave_now_ = false;    // a signal came when only output remained to be written
};

}  // namespace ferry_run
