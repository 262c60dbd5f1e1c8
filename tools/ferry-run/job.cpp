#include "job.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <poll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace ferry_run {
namespace {

constexpr std::array ending_signals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array other_signals{SIGUSR1, SIGUSR2};

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

#if FERRY_WITH_AUTHENTICATION
constexpr bool workers_can_prove = true;
#else
constexpr bool workers_can_prove = false;
#endif

// Programs without a slash in their name are searched in PATH only.
std::string hint_for(const std::string& program, int cause) {
  if (cause != ENOENT || program.empty() || program.find('/') != std::string::npos) return {};
  const std::string here = "./" + program;
  struct stat found {};
  if (::stat(here.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return {};
  if (::access(here.c_str(), X_OK) != 0) return " in PATH; " + here + " exists but is not executable";
  return " in PATH; did you mean '" + here + "'?";
}

// For workers on one machine that have no secret: excludes other users of the machine. Passed in the environment only,
// which they cannot read. Empty if there is a secret, or none is needed.
std::string secret_of_the_run(const options& chosen) {
  if (!workers_can_prove || !chosen.wants_secret) return {};
  std::array<unsigned char, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) fail("getrandom");
  std::string result;
  for (const unsigned char byte : bytes) {
    result.push_back("0123456789abcdef"[byte >> 4U]);
    result.push_back("0123456789abcdef"[byte & 15U]);
  }
  return result;
}

// The environment of a worker: ferry-run's own with the rendezvous variables; an empty one is removed.
std::vector<std::string> environment(const options& chosen, const placement& place, const std::string& secret,
                                     int local_rank) {
  std::vector<std::pair<std::string, std::string>> set{
      {"RANK", std::to_string(place.first_rank + local_rank)},
      {"WORLD_SIZE", std::to_string(place.world_size)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(chosen.workers)},
      {"NODE_RANK", std::to_string(place.node_rank)},
      {"GROUP_RANK", std::to_string(place.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(place.nodes)},
      {"MASTER_ADDR", place.address},
      {"MASTER_PORT", std::to_string(place.port)},
      // Set by a torchrun that started ferry-run: its store is not at this MASTER_PORT.
      {"TORCHELASTIC_USE_AGENT_STORE", ""}};
  if (!secret.empty()) {
    set.emplace_back("FERRY_SECRET", secret);
    set.emplace_back("FERRY_SECRET_OPTIONAL", secret);  // programs built without authentication ignore it
  }
  if (!chosen.flight_records.empty()) set.emplace_back("FERRY_FLIGHT_DIRECTORY", chosen.flight_records);
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (std::none_of(set.begin(), set.end(), [&](const auto& one) { return one.first == name; }))
      result.push_back(text);
  }
  for (const auto& [name, value] : set) {
    if (!value.empty()) result.push_back(name + "=" + value);
  }
  return result;
}

}  // namespace

job::job(options chosen)
    : options_(std::move(chosen)),
      output_(STDOUT_FILENO),
      errors_(STDERR_FILENO),
      same_target_(output_.same_target(errors_)) {}

job::~job() {
  // Not empty only when run() threw.
  for (worker& one : workers_) {
    if (!one.running) continue;
    kill(-one.pid, SIGKILL);
    waitpid(one.pid, nullptr, 0);
  }
  if (signals_ >= 0) close(signals_);
}

int job::run() {
  if (options_.nodes > 1) {
    meeting_ = meet(options_);
    place_ = *meeting_->placed();
  } else {
    place_ = {0, 1, 0, options_.workers, options_.address, options_.port == 0 ? free_port() : options_.port};
  }
  options_.flight_records = made_flight_directory(options_.flight_records);
  take_signals();
  guard_.emplace({output_.descriptor(), errors_.descriptor()});
  start_workers();
  while (running() > 0) step();
  // A failure elsewhere also fails this node, even if its own workers have succeeded.
  if (meeting_ && !status_) meeting_->report({});
  while (meeting_ && !status_ && !meeting_->concluded()) step();
  while (!leave_now_ && (output_.pending() || errors_.pending())) step();
  return status_.value_or(0);
}

void job::tell_flight_records(const worker& one) {
  for (const std::string& file : flight_records_of(options_.flight_records, one.pid, started_at_))
    say("worker " + std::to_string(one.rank) + " has left a flight record: ferry-top --post-mortem " + file);
}

void job::take_signals() {
  sigset_t set;
  sigemptyset(&set);
  const auto add_unless_ignored = [&](int signal) {
    struct sigaction current {};
    sigaction(signal, nullptr, &current);
    if (current.sa_handler != SIG_IGN) sigaddset(&set, signal);  // as under nohup
  };
  for (const int signal : ending_signals) add_unless_ignored(signal);
  for (const int signal : other_signals) add_unless_ignored(signal);
  sigaddset(&set, SIGCHLD);
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &standard, &inherited_.on_child);  // if it were ignored, the workers' status would be lost
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &inherited_.on_pipe);
  if (sigprocmask(SIG_BLOCK, &set, &inherited_.signal_mask) != 0) fail("sigprocmask");
  signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0) fail("signalfd");

  // Two pipes for each worker.
  getrlimit(RLIMIT_NOFILE, &inherited_.descriptors);
  rlimit wide = inherited_.descriptors;
  wide.rlim_cur = wide.rlim_max;
  setrlimit(RLIMIT_NOFILE, &wide);
}

void job::start_workers() {
  workers_.reserve(static_cast<std::size_t>(options_.workers));
  const std::string secret = secret_of_the_run(options_);
  for (int local_rank = 0; local_rank < options_.workers && !ending_; ++local_rank) {
    const int rank = place_.first_rank + local_rank;
    bool exec_failed = false;
    try {
      const started_process process =
          start(options_.command, environment(options_, place_, secret, local_rank), inherited_, exec_failed);
      guard_->watch(process.pid);
      const std::string prefix = "[" + std::to_string(rank) + "] ";
      workers_.push_back({rank, process.pid, true, source(process.stdout_pipe, prefix, output_),
                          source(process.stderr_pipe, prefix, errors_)});
    } catch (const std::system_error& e) {
      const int cause = e.code().value();
      const std::string reason = e.code().message();
      std::string text;
      if (exec_failed) {
        text = "cannot run '" + options_.command.front() + "'" + (meeting_ ? " on " + this_node() : "") + ": " +
               reason + hint_for(options_.command.front(), cause);
      } else {
        text = "cannot start worker " + std::to_string(rank) + " of " + std::to_string(place_.world_size) +
               (meeting_ ? " on " + this_node() : "") + ": " + e.what();
      }
      say(text);
      failed(!exec_failed ? 125 : cause == ENOENT ? 127 : 126, text);
      end_workers();
    }
    on_signals();
  }
}

void job::step() {
  std::vector<pollfd> polled;
  std::vector<source*> readers;
  polled.push_back({signals_, POLLIN, 0});
  for (worker& one : workers_) {
    for (source* each : {&one.out, &one.err}) {
      if (!each->wanted()) continue;
      polled.push_back({each->descriptor(), POLLIN, 0});
      readers.push_back(each);
    }
  }
  const std::size_t first_sink = polled.size();
  std::vector<sink*> writers;
  if (may_write(output_, errors_)) writers.push_back(&output_);
  if (may_write(errors_, output_) && !(same_target_ && !writers.empty())) writers.push_back(&errors_);
  for (const sink* each : writers) polled.push_back({each->descriptor(), POLLOUT, 0});

  const std::size_t first_of_meeting = polled.size();
  if (meeting_) meeting_->add_polled(polled);

  const int count = poll(polled.data(), polled.size(), wait_time());
  if (count < 0 && errno != EINTR) fail("poll");
  if (count > 0) {
    for (std::size_t i = 0; i < readers.size(); ++i) {
      if (polled[i + 1].revents != 0) readers[i]->read_some();
    }
    for (std::size_t i = 0; i < writers.size(); ++i) {
      if (polled[first_sink + i].revents != 0) flush(*writers[i]);
    }
    if (polled[0].revents != 0) on_signals();
    if (meeting_) {
      meeting_->on_polled(polled.data() + first_of_meeting);
      on_meeting();
    }
  }
  kill_overdue();
}

// Where both go to one target, only one of them writes at a time, and not inside a line of the other.
bool job::may_write(const sink& target, const sink& other) const {
  return target.pending() && !(same_target_ && other.inside_line());
}

int job::wait_time() const {
  if (!kill_at_) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*kill_at_ - clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60000));
}

void job::flush(sink& target) {
  const int failure = target.write_some();
  if (failure == 0) return;
  // The workers' output has no reader: the run has no purpose, as for a single program that gets SIGPIPE.
  const std::string text =
      std::string("cannot write the output: ") + std::strerror(failure);  // NOLINT(concurrency-mt-unsafe)
  if (failure != EPIPE) say(text);
  failed(failure == EPIPE ? 128 + SIGPIPE : 125, text);
  end_workers();
}

void job::on_signals() {
  signalfd_siginfo info{};
  while (read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      reap();
    } else {
      pass_on(signal);
    }
  }
}

void job::pass_on(int signal) {
  const bool ends = std::find(ending_signals.begin(), ending_signals.end(), signal) != ending_signals.end();
  if (ends) reap();  // ended workers get no signal
  if (ends && running() == 0 && !workers_.empty()) {
    failed(128 + signal, "ended by signal " + std::to_string(signal));
    leave_now_ = true;
    return;
  }
  signal_workers(signal);
  if (!ends) return;
  signal_workers(SIGCONT);  // a stopped worker must be able to end
  asked_with_.insert(signal);
  if (workers_.size() < static_cast<std::size_t>(options_.workers))  // not all started
    failed(128 + signal, "ended by signal " + std::to_string(signal));
  ending_ = true;
  if (kill_at_ && (signal == SIGINT || signal == SIGTERM)) {
    kill_at_ = clock::now();  // second request
  } else if (!kill_at_) {
    kill_at_ = clock::now() + options_.grace;
  }
}

void job::reap() {
  for (worker& one : workers_) {
    if (!one.running) continue;
    siginfo_t info{};
    // The zombie stays until its process group has been killed, so that the group's number cannot be reused.
    if (waitid(P_PID, static_cast<id_t>(one.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != one.pid)
      continue;
    kill(-one.pid, SIGKILL);
    waitpid(one.pid, nullptr, 0);
    guard_->forget(one.pid);
    one.running = false;
    one.out.finish();
    one.err.finish();
    // A worker that had to be killed may have hung, and one may crash while it ends.
    const bool requested = asked_with_.contains(info.si_status);
    ended(one, info.si_code, info.si_status);
    if (info.si_code != CLD_EXITED && !requested) tell_flight_records(one);
  }
}

void job::ended(worker& one, int code, int status) {
  if ((code == CLD_EXITED && status == 0) || status_) return;
  const std::string process = "process " + std::to_string(one.pid) + ") ";
  std::string text = "worker " + std::to_string(one.rank);
  text +=
      meeting_ ? " on node " + std::to_string(place_.node_rank) + " (" + host_name() + ", " + process : " (" + process;
  if (code == CLD_EXITED) {
    text += "exited with status " + std::to_string(status);
  } else {
    text += "was ended by signal " + std::to_string(status) + " (" + strsignal(status) +
            ")";  // NOLINT(concurrency-mt-unsafe)
    if (code == CLD_DUMPED) text += ", core dumped";
  }
  failed(code == CLD_EXITED ? status : 128 + status, text);
  if (ending_) return;  // as requested
  if (running() > 0) text += "; ending the other " + std::to_string(running());
  const std::size_t unstarted = static_cast<std::size_t>(options_.workers) - workers_.size();
  if (unstarted > 0) text += "; not starting " + std::to_string(unstarted) + " more";
  say(text);
  end_workers();
}

void job::failed(int status, const std::string& text) {
  if (status_) return;
  status_ = status;
  if (meeting_)
    meeting_->report({status, text.starts_with("worker") || text.find(" on " + this_node()) != text.npos
                                  ? text
                                  : this_node() + ": " + text});
}

void job::on_meeting() {
  const auto& ended = meeting_->concluded();
  if (!ended || ended->status == 0 || status_) return;
  status_ = ended->status;
  say(ended->text + (running() > 0 ? "; ending the " + std::to_string(running()) + " workers of this node" : ""));
  end_workers();
}

std::string job::this_node() const { return "node " + std::to_string(place_.node_rank) + " (" + host_name() + ")"; }

void job::end_workers() {
  if (ending_) return;
  ending_ = true;
  asked_with_.insert(SIGTERM);
  signal_workers(SIGTERM);
  signal_workers(SIGCONT);  // a stopped worker must be able to end
  kill_at_ = clock::now() + options_.grace;
}

void job::kill_overdue() {
  if (!kill_at_ || clock::now() < *kill_at_) return;
  kill_at_.reset();
  if (running() == 0) return;
  say("killing " + std::to_string(running()) + " workers that have not ended in time");
  signal_workers(SIGKILL);
}

void job::signal_workers(int signal) {
  for (const worker& one : workers_) {
    if (one.running) kill(-one.pid, signal);
  }
}

int job::running() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const worker& one) { return one.running; }));
}

}  // namespace ferry_run
