// How soon callers are notified of a failed worker, and whether busy workers are wrongly declared dead.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>
#include <ferry/ferry.hpp>

#include "support/handlers.hpp"
#include "support/options.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"
#include "support/worker_pair.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;

double milliseconds(clock::duration value) { return std::chrono::duration<double, std::milli>(value).count(); }

struct samples {
  std::vector<double> call;      // from the signal to the error of a call that was pending
  std::vector<double> observer;  // from the signal to on_peer_lost
};

// One trial: a pair with a call pending, whose callee gets a signal.
void trial(const pair_options& wanted, int signal, samples& out) {
  worker_pair pair(wanted, pin_mode::unpinned);
  auto told = std::make_shared<std::promise<clock::time_point>>();
  auto when = told->get_future();
  pair.caller().on_peer_lost([told](const ferry::worker_info&, const std::string&) { told->set_value(clock::now()); });
  (void)pair.caller().rpc_sync<remote::add>(callee, 1, 2);
  const auto pending =
      pair.caller().rpc_async<remote::block_for>({callee, {.timeout = ferry::no_timeout}}, 3600 * 1000);
  (void)pair.caller().rpc_sync<remote::add>(callee, 1, 2);  // sent after it, so the handler has it
  const auto sent = clock::now();
  pair.signal_callee(signal);
  try {
    pending.get();
    throw std::runtime_error("a call to a dead worker has succeeded");
  } catch (const ferry::peer_lost&) {
    out.call.push_back(milliseconds(clock::now() - sent));
  }
  out.observer.push_back(milliseconds(when.get() - sent));
}

void add(report& out, const std::string& name, std::vector<double>& values, std::optional<target> p99) {
  const std::size_t n = values.size();
  out.add({.name = name + "/p50", .value = quantile(values, 0.5), .unit = "ms", .n = n});
  out.add({.name = name + "/p99", .value = quantile(values, 0.99), .unit = "ms", .n = n}, p99);
}

void measure(report& out, const options& chosen, const std::string& transport) {
  const std::string killed = "killed/" + transport;
  if (chosen.wants(killed)) {
    out.section(killed);
    samples all;
    for (int i = 0; i != (chosen.quick ? 20 : 200); ++i) trial({.transport = transport}, SIGKILL, all);
    add(out, killed + "/call", all.call, target{20, false, false});
    add(out, killed + "/observer", all.observer, std::nullopt);
  }
  const std::string stopped = "stopped/" + transport;
  if (chosen.wants(stopped)) {
    out.section(stopped);
    out.say("heartbeats every 100 ms, lease 500 ms");
    samples all;
    for (int i = 0; i != (chosen.quick ? 5 : 40); ++i)
      trial({.transport = transport, .heartbeat_interval = 100ms, .lease = 500ms}, SIGSTOP, all);
    add(out, stopped + "/call", all.call, target{600, false, false});
    add(out, stopped + "/observer", all.observer, std::nullopt);
  }
}

// ---------------------------------------------------------------- a link that is cut

// Two network namespaces, joined by a link: this process's own, and one for callees. Needs root, and the program `ip`.
class cut_link {
 public:
  static constexpr const char* here = "10.201.77.1";
  static constexpr const char* there = "10.201.77.2";

  cut_link() {
    must("ip netns add " + space());
    must("ip link add " + near_end() + " type veth peer name " + far_end() + " netns " + space());
    must("ip addr add " + std::string(here) + "/24 dev " + near_end());
    must("ip -n " + space() + " addr add " + std::string(there) + "/24 dev " + far_end());
    must("ip link set " + near_end() + " up");
    heal();
  }
  ~cut_link() { (void)run("ip netns delete " + space()); }  // and with it the link
  cut_link(const cut_link&) = delete;
  cut_link& operator=(const cut_link&) = delete;

  /// At the far end: this side is not notified, its packets are dropped.
  void cut() const { must("ip -n " + space() + " link set " + far_end() + " down"); }
  void heal() const { must("ip -n " + space() + " link set " + far_end() + " up"); }
  [[nodiscard]] std::string space() const { return "ferry-bench-" + number_; }

  static bool possible() { return ::geteuid() == 0 && run("ip netns list"); }

 private:
  [[nodiscard]] std::string near_end() const { return "fb" + number_ + "a"; }
  [[nodiscard]] std::string far_end() const { return "fb" + number_ + "b"; }
  static bool run(const std::string& command) { return std::system((command + " > /dev/null 2>&1").c_str()) == 0; }
  static void must(const std::string& command) {
    if (!run(command)) throw std::runtime_error("this command fails: " + command);
  }

  const std::string number_ = std::to_string(::getpid());
};

ferry::worker start_at(const char* address, const std::string& name, int rank, const std::string& meeting) {
  ferry::worker_config config{.name = name, .rank = rank, .world_size = 2, .init_method = meeting};
  config.transports = {"tcp"};
  config.transport.bind = address;
  config.heartbeat_interval = 100ms;
  config.lease = 500ms;
  config.allow_unauthenticated = true;
  return ferry::init_rpc(config);
}

// Arguments: the namespace, the init method.
int serve_in_namespace(const std::vector<std::string>& arguments) {
  const int space = ::open(("/run/netns/" + arguments.at(0)).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) throw std::runtime_error("cannot enter a network namespace");
  ::close(space);
  ferry::worker self = start_at(cut_link::there, callee, 1, arguments.at(1));
  char ignored = 0;
  read_all(control_descriptor, &ignored, 1);
  self.shutdown(false);
  return 0;
}

void measure_cut(report& out, const options& chosen) {
  const std::string name = "cut/tcp";
  if (!chosen.wants(name)) return;
  if (!cut_link::possible()) return out.say("cut/tcp was left out: it needs root, and the program ip");
  out.section(name);
  out.say("a link between two network namespaces; heartbeats every 100 ms, lease 500 ms");
  cut_link link;
  std::string place = "/tmp/ferry-bench-XXXXXX";
  if (!::mkdtemp(place.data())) throw std::runtime_error("mkdtemp fails");
  std::vector<double> caller;
  double fenced = 0;
  for (int i = 0; i != (chosen.quick ? 5 : 40); ++i) {
    const std::string meeting = "file://" + place + "/store" + std::to_string(i);
    child_process far("cut callee", {link.space(), meeting});
    ferry::worker self = start_at(cut_link::here, "caller", 0, meeting);
    (void)self.rpc_sync<remote::add>(callee, 1, 2);
    const auto pending = self.rpc_async<remote::block_for>({callee, {.timeout = ferry::no_timeout}}, 3600 * 1000);
    (void)self.rpc_sync<remote::add>(callee, 1, 2);
    const auto begin = clock::now();
    link.cut();
    try {
      pending.get();
      throw std::runtime_error("a call over a link that is cut has succeeded");
    } catch (const ferry::error& e) {
      caller.push_back(milliseconds(clock::now() - begin));
      if (e.kind() != ferry::errc::peer_lost && e.kind() != ferry::errc::fenced) throw;
      if (e.kind() == ferry::errc::fenced) ++fenced;  // the other side declared the failure first
    }
    link.heal();
    self.shutdown(false);
    far.signal(SIGKILL);
  }
  std::filesystem::remove_all(place);
  add(out, name + "/call", caller, target{600, false, false});
  out.add({.name = name + "/caller-fenced", .value = fenced, .unit = "", .n = caller.size()});
}

int spin(const std::vector<std::string>&) {
  for (;;) {
    // Until it is killed.
  }
}

// Workers with the default lease among compute-bound processes: none may be declared dead.
void measure_busy(report& out, const options& chosen) {
  const std::string name = "busy";
  if (!chosen.wants(name)) return;
  constexpr int crowd = 64;
  const auto length = chosen.window.count() != 0 ? chosen.window : std::chrono::milliseconds(chosen.quick ? 15s : 60s);
  out.section(name);
  out.say("64 processes that compute, and a pair of workers with the usual heartbeats and lease");
  worker_pair pair({.transport = "tcp"}, pin_mode::unpinned);
  std::vector<child_process> busy;
  for (int i = 0; i != crowd; ++i) busy.emplace_back("spin", std::vector<std::string>{});
  std::size_t calls = 0;
  double longest = 0;
  for (const auto until = clock::now() + length; clock::now() < until; ++calls) {
    const auto before = clock::now();
    (void)pair.caller().rpc_sync<remote::add>(callee, 1, 2);
    longest = std::max(longest, milliseconds(clock::now() - before));
    std::this_thread::sleep_for(10ms);
  }
  for (child_process& each : busy) each.signal(SIGKILL);
  out.add({.name = name + "/false-deaths",
           .value = std::stod(pair.caller().debug_info("agent.lost_workers")),
           .unit = "",
           .n = calls},
          target{0, false, false});
  out.add({.name = name + "/longest-call", .value = longest, .unit = "ms", .n = calls});
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  auto roles = worker_roles();
  roles.emplace("spin", spin);
  roles.emplace("cut callee", serve_in_namespace);
  run_role(argc, argv, roles);
  const options chosen = read_options(
      argc, argv, "failure: time from the death of a worker to the errors of its callers, and false deaths");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(600));
  // The expected failures need no warnings.
  ferry::set_log_level(ferry::log_level::error);
  try {
    report out("failure", chosen);
    for (const std::string transport : {"tcp", "unix", "shm"}) measure(out, chosen, transport);
    measure_cut(out, chosen);
    measure_busy(out, chosen);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "failure: %s\n", e.what());
    return 1;
  }
}
