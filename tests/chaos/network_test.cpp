// Five workers that call each other without pause through bad networks: a fault_proxy in front of each delays, throttles,
// splits, stalls, loses, cuts and refuses, heals, and begins anew; in a second group it damages bytes, too. Every call
// ends, with a right result where the bytes are right; and whenever the network has healed, every worker reaches every
// other one. A worker that was declared dead says so, and joins again.
//
// --seconds=N (8) sets the duration of each group, --seed=N the sequence of faults; the seed of a run is printed.
// --lease=N (1000) is that of the workers, in milliseconds: on a machine whose processors are taken by others for longer, they
// would be taken for dead for that alone.

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/test_kit/fault_proxy.hpp>

#include "ports.hpp"
#include "processes.hpp"
#include "sanitizers.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace network_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry::link_fault;
using ferry::proxy_direction;
using ferry_test::child_process;

constexpr int workers = 5;
constexpr auto heartbeat = 100ms;
// What damaged sizes may make a worker ask for at once.
constexpr std::uint64_t largest_message = std::uint64_t{16} << 20U;
constexpr long most_memory = (ferry_test::sanitized ? 4L : 1L) << 20U;  // KiB

std::string name_of(int slot) { return "n-" + std::to_string(slot); }

// ---- the functions that they call

// Damaged numbers may overflow.
int add(int a, int b) { return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)); }
// Adds one for each worker on the route.
int relay(const std::vector<std::string>& way, int value) {
  if (way.empty()) return add(value, 1);
  return ferry::rpc_sync<relay>(way.front(), std::vector<std::string>(way.begin() + 1, way.end()), add(value, 1));
}
ferry::tensor twice(ferry::tensor t) {
  // Damaged ones may be of another type.
  if (t.dtype() != ferry::dtype::f32) return t;
  auto* values = t.data<float>();
  for (std::int64_t i = 0; i != t.numel(); ++i) values[i] *= 2;
  return t;
}
std::string echo(const std::string& text) { return text; }
// Ends at the latest when its caller gives up.
int dawdle() {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  (void)never.wait_for(lock, ferry::this_call().stop_token(), 100ms, [] { return false; });
  return 3;
}
std::atomic<int> received{0};
void count_one_way(int) { ++received; }

// ---- a worker

/// Errors of calls over a network that loses and cuts.
bool may_happen(errc kind) {
  switch (kind) {
    case errc::rpc_timeout:
    case errc::call_cancelled:
    case errc::peer_lost:
    case errc::fenced:
    case errc::connect_failed:
    case errc::unknown_worker:
    case errc::shutting_down:
    case errc::not_initialized:
    case errc::resource_exhausted: return true;
    default: return false;
  }
}

long figure_of_this_process(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != name + ":") continue;
    long value = 0;
    status >> value;
    return value;
  }
  return -1;
}

class member {
 public:
  // Init method, name, port to listen at, address to publish, "lost" or "damaged", seed, lease in milliseconds.
  explicit member(const std::vector<std::string>& arguments)
      : arguments_(arguments),
        name_(arguments.at(1)),
        damaged_(arguments.at(4) == "damaged"),
        seed_(static_cast<unsigned>(std::stoul(arguments.at(5)))),
        lease_(std::stol(arguments.at(6))) {}

  void join() {
    self_ = ferry::init_rpc(
        {.name = name_,
         .rank = ferry::any_rank,
         .init_method = arguments_.at(0),
         .num_worker_threads = 4,
         .heartbeat_interval = heartbeat,
         .lease = lease_,
         .transports = {"tcp"},
         .transport = {.advertise = arguments_.at(3),
                       .port = static_cast<std::uint16_t>(std::stoul(arguments_.at(2))),
                       .limits = {.max_message_bytes = largest_message, .max_decoded_bytes = largest_message},
                       .handshake_timeout = lease_},
         .init_timeout = 60s,
         .exit_timeout = 5s});
    stop_ = false;
    for (unsigned i = 0; i != 2; ++i) threads_.emplace_back([this, i] { call_all(seed_ + i); });
  }
  void stop_worker() {
    stop_ = true;
    for (auto& each : threads_) each.join();
    threads_.clear();
    try {
      if (self_.fenced()) {
        self_.shutdown(false);
      } else {
        self_.leave();
      }
    } catch (const ferry::error& e) {
      if (!allowed(e.kind()) && e.kind() != errc::shutdown_timeout) count_unexpected(e.what());
    }
    self_ = {};
  }
  void rejoin_if_fenced() {
    if (!self_.fenced()) return;
    ++fences_;
    stop_worker();
    join();
  }
  /// Calls every other worker until it answers. Returns why that failed, or nothing.
  std::string reach_all() {
    for (int slot = 0; slot != workers; ++slot) {
      if (name_of(slot) == name_) continue;
      std::string last = "it never answered";
      // Leases, the fences of others and their new starts are over by then.
      for (const auto until = ferry::clock::now() + longest();;) {
        rejoin_if_fenced();
        try {
          // A damaged connection that the proxies have reset by now cannot make this wrong.
          if (self_.rpc_sync<add>({name_of(slot), {.timeout = lease_}}, slot, 7) == slot + 7) break;
          return name_of(slot) + " answered wrongly";
        } catch (const ferry::error& e) {
          last = e.what();
          if (!allowed(e.kind())) return last;
        }
        if (ferry::clock::now() > until) return "no way to " + name_of(slot) + ": " + last;
        std::this_thread::yield();
      }
    }
    return {};
  }
  [[nodiscard]] std::string report() const {
    std::ostringstream text;
    text << "done " << calls_ << ' ' << good_ << ' ' << wrong_ << ' ' << unexpected_ << ' ' << fences_ << ' '
         << figure_of_this_process("VmHWM");
    return text.str();
  }

 private:
  [[nodiscard]] std::chrono::milliseconds longest() const { return 10s + 20 * lease_; }
  [[nodiscard]] bool allowed(errc kind) const {
    return damaged_ ? ferry::errc_name(kind) != "unknown" : may_happen(kind);
  }
  void count_unexpected(const std::string& what) {
    ++unexpected_;
    std::fprintf(stderr, "%s: unexpected: %s\n", name_.c_str(), what.c_str());
  }
  template <class Call>
  void attempt(const char* what, const Call& call) {
    ++calls_;
    const auto begin = ferry::clock::now();
    try {
      ++(call() ? good_ : wrong_);
    } catch (const ferry::error& e) {
      if (!allowed(e.kind())) count_unexpected(std::string(what) + ": " + e.what());
    } catch (const std::exception& e) {
      count_unexpected(std::string(what) + ": " + e.what());
    }
    // The longest phase of faults, and a busy machine: what has no timeout ends when the network has healed.
    const auto taken = ferry::clock::now() - begin;
    if (taken > longest()) count_unexpected(std::string(what) + " took " + std::to_string(taken / 1s) + " s");
  }

  void call_all(unsigned seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random); };
    const auto any_worker = [&] { return name_of(below(workers)); };
    const std::array<ferry::timeout, 4> limits{20ms, 200ms, 2000ms, ferry::no_timeout};
    while (!stop_ && !self_.fenced()) {
      const std::string callee = any_worker();
      const ferry::to there{callee, {.timeout = limits[static_cast<std::size_t>(below(4))]}};
      switch (below(7)) {
        case 0: {
          const int a = below(1000);
          attempt("add", [&] { return self_.rpc_sync<add>(there, a, 7) == a + 7; });
          break;
        }
        case 1: {
          std::vector<std::string> way;
          for (int i = below(4); i != 0; --i) way.push_back(any_worker());
          const int expected = static_cast<int>(way.size()) + 1;
          attempt("relay", [&] { return self_.rpc_sync<relay>(there, way, 0) == expected; });
          break;
        }
        case 2: {
          const auto size = 1 + below(100'000);
          const ferry::tensor sent = ferry::full({size}, 1.5F);
          attempt("twice", [&] {
            const ferry::tensor got = self_.rpc_sync<twice>(there, sent);
            if (got.dtype() != ferry::dtype::f32 || got.numel() != size) return false;
            const auto* values = got.data<float>();
            return std::accumulate(values, values + size, 0.0) == 3.0 * size;
          });
          break;
        }
        case 3: {
          const std::string text(static_cast<std::size_t>(below(300'000)), static_cast<char>('a' + below(26)));
          attempt("echo", [&] { return self_.rpc_sync<echo>(there, text) == text; });
          break;
        }
        case 4: {
          std::vector<ferry::future<int>> sums;
          for (int i = 0; i != 8; ++i) {
            attempt("to send", [&] {
              sums.push_back(self_.rpc_async<add>(there, i, 2 * i));
              return true;
            });
          }
          for (auto& sum : sums) {
            attempt("one of eight", [&] { return sum.get() % 3 == 0; });
          }
          break;
        }
        case 5:
          attempt("dawdle", [&] {
            auto slow = self_.rpc_async<dawdle>(there);
            if (below(2) == 0) slow.cancel();
            return slow.get() == 3;
          });
          break;
        default:
          attempt("notify", [&] {
            self_.notify<count_one_way>(there, 1);
            return true;
          });
      }
    }
  }

  const std::vector<std::string> arguments_;
  const std::string name_;
  const bool damaged_;
  const unsigned seed_;
  const std::chrono::milliseconds lease_;
  ferry::worker self_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
  std::atomic<long> calls_{0};
  std::atomic<long> good_{0};
  std::atomic<long> wrong_{0};
  std::atomic<long> unexpected_{0};
  long fences_ = 0;
};

// Commands: "reach", answered with "reached" or why not; "stop", answered with the report.
const ferry_test::role network_member("network member", [](const std::vector<std::string>& arguments) {
  ferry::set_log_level(ferry::log_level::off);
  member self(arguments);
  self.join();
  ferry_test::tell_parent("joined");
  for (;;) {
    // What befell it while the network was bad may reach it late, and the others wait for it: they cannot reach it before it
    // has joined again.
    for (pollfd input{STDIN_FILENO, POLLIN, 0}; ::poll(&input, 1, 100) == 0;) self.rejoin_if_fenced();
    const std::string order = ferry_test::ask_parent();
    if (order == "reach") {
      const std::string problem = self.reach_all();
      ferry_test::tell_parent(problem.empty() ? "reached" : problem);
    }
    if (order == "stop") {
      self.stop_worker();
      ferry_test::tell_parent(self.report());
      return 0;
    }
  }
});

// ---- the networks

// An argument "--name=value" of this program; else the variable; else the usual value.
long setting(const std::string& name, const char* variable, long usual) {
  std::ifstream all("/proc/self/cmdline");
  for (std::string each; std::getline(all, each, '\0');) {
    if (each.starts_with("--" + name + "=")) return std::stol(each.substr(name.size() + 3));
  }
  const char* text = std::getenv(variable);
  return text ? std::stol(text) : usual;
}

/// Numbers of the faults, for people that read the output of a run.
void add_to(ferry::proxy_counters& sum, const ferry::proxy_counters& one) {
  sum.connections += one.connections;
  sum.dropped += one.dropped;
  sum.bytes += one.bytes;
  sum.lost += one.lost;
  sum.delayed += one.delayed;
  sum.split += one.split;
  sum.closed += one.closed;
  sum.reset += one.reset;
  sum.stalled += one.stalled;
  sum.black_holes += one.black_holes;
  sum.duplicated += one.duplicated;
  sum.reordered += one.reordered;
  sum.flipped += one.flipped;
}

class networks {
 public:
  networks(bool damaging, unsigned seed, std::chrono::milliseconds lease)
      : damaging_(damaging), lease_(lease), random_(seed) {
    for (int slot = 0; slot != workers; ++slot) {
      ports_.push_back(ferry_test::free_port());
      proxies_.push_back(std::make_unique<ferry::fault_proxy>("127.0.0.1:" + std::to_string(ports_.back()),
                                                              ferry_test::free_port(), seed + unsigned(slot)));
    }
  }
  [[nodiscard]] std::uint16_t port(int slot) const { return ports_.at(static_cast<std::size_t>(slot)); }
  [[nodiscard]] std::string address(int slot) const { return proxies_.at(static_cast<std::size_t>(slot))->address(); }

  /// A phase of faults.
  void spoil() {
    for (auto& each : proxies_) each->set_faults(any_faults(), proxy_direction::to_target);
    for (auto& each : proxies_) each->set_faults(any_faults(), proxy_direction::to_client);
    for (int events = 1 + below(6); events != 0; --events) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20 + below(400)));  // the pace of events
      ferry::fault_proxy& one = *proxies_[static_cast<std::size_t>(below(workers))];
      const auto direction = static_cast<proxy_direction>(1 + below(3));
      switch (below(8)) {
        case 0: one.cut(link_fault::stall, direction); break;
        case 1: one.cut(link_fault::black_hole, direction); break;
        case 2: one.set_admission(ferry::proxy_admission::drop, 0.5); break;
        case 3: one.set_admission(ferry::proxy_admission::ignore, 0.5); break;
        case 4:
          if (below(4) == 0) one.set_admission(ferry::proxy_admission::refuse);
          break;
        case 5: one.heal(); break;
        default: one.reset_all();
      }
    }
    // Now and then longer than a lease.
    if (below(5) == 0) std::this_thread::sleep_for(lease_ + 500ms);
  }
  void heal() {
    for (auto& each : proxies_) each->heal();
  }
  [[nodiscard]] ferry::proxy_counters counters() const {
    ferry::proxy_counters sum;
    for (const auto& each : proxies_) add_to(sum, each->counters());
    return sum;
  }

 private:
  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }
  ferry::link_faults any_faults() {
    ferry::link_faults faults;
    if (below(3) == 0) faults.delay = std::chrono::microseconds(below(5000));
    if (below(3) == 0) faults.jitter = std::chrono::microseconds(below(10'000));
    if (below(4) == 0) faults.bytes_per_second = static_cast<std::uint64_t>(100'000 + below(10'000'000));
    if (below(2) == 0) faults.split = 0.5;
    faults.piece = static_cast<std::size_t>(1 + below(100));
    if (below(3) == 0) faults.close = 0.002;
    if (below(3) == 0) faults.reset = 0.002;
    if (below(5) == 0) faults.stall = 0.0005;
    if (below(5) == 0) faults.black_hole = 0.0005;
    if (damaging_) {
      if (below(2) == 0) faults.duplicate = 0.01;
      if (below(2) == 0) faults.reorder = 0.01;
      if (below(2) == 0) faults.flip = 0.02;
    }
    return faults;
  }

  const bool damaging_;
  const std::chrono::milliseconds lease_;
  std::mt19937 random_;
  std::vector<std::uint16_t> ports_;
  std::vector<std::unique_ptr<ferry::fault_proxy>> proxies_;
};

void run(bool damaging) {
  const auto length = std::chrono::seconds(setting("seconds", "FERRY_NETWORK_SECONDS", 8));
  const auto seed =
      static_cast<unsigned>(setting("seed", "FERRY_NETWORK_SEED", static_cast<long>(std::random_device()() % 100000)));
  MESSAGE("--seed=" << seed << " --seconds=" << length.count());
  CAPTURE(seed);
  const ferry_test::watchdog dog("workers over bad networks", length + 300s);
  const ferry_test::temporary_directory directory;
  const std::chrono::milliseconds lease(setting("lease", "FERRY_NETWORK_LEASE", 1000));
  networks bad(damaging, seed, lease);
  std::vector<std::unique_ptr<child_process>> group;
  for (int slot = 0; slot != workers; ++slot) {
    group.push_back(std::make_unique<child_process>(ferry_test::child_options{
        .role = "network member",
        .arguments = {"file://" + directory.file("store"), name_of(slot), std::to_string(bad.port(slot)),
                      bad.address(slot), damaging ? "damaged" : "lost", std::to_string(seed + 100U * unsigned(slot)),
                      std::to_string(lease.count())}}));
  }
  for (const auto& each : group) REQUIRE(each->read_line() == "joined");

  int phases = 0;
  for (const auto end = ferry::clock::now() + length; ferry::clock::now() < end; ++phases) {
    CAPTURE(phases);
    bad.spoil();
    bad.heal();
    for (const auto& each : group) each->write_line("reach");
    for (const auto& each : group) CHECK(each->read_line() == "reached");
  }

  for (const auto& each : group) each->write_line("stop");
  long calls = 0;
  long good = 0;
  long wrong = 0;
  long fences = 0;
  for (int slot = 0; slot != workers; ++slot) {
    CAPTURE(slot);
    auto& child = *group[static_cast<std::size_t>(slot)];
    std::istringstream answer(child.read_line());
    std::string word;
    std::array<long, 6> figures{};
    answer >> word;
    for (long& each : figures) answer >> each;
    CHECK(word == "done");
    CHECK(static_cast<bool>(answer));
    if (!damaging) CHECK(figures[2] == 0);  // wrong results
    CHECK(figures[3] == 0);                 // unexplained errors
    CHECK(figures[5] > 0);                  // KiB of memory at most
    CHECK(figures[5] < most_memory);
    CHECK(child.wait() == 0);
    calls += figures[0];
    good += figures[1];
    wrong += figures[2];
    fences += figures[4];
  }
  CHECK(good > 0);
  const auto did = bad.counters();
  CHECK((did.split > 0 || did.delayed > 0 || did.reset > 0));
  MESSAGE(phases << " phases, " << calls << " calls, " << good << " answered, " << wrong << " wrongly, " << fences
                 << " fenced; " << did.connections << " connections, " << did.dropped << " dropped, " << did.bytes
                 << " bytes, " << did.lost << " lost, " << did.split << " split, " << did.closed << " closed, "
                 << did.reset << " reset, " << did.stalled << " stalled, " << did.black_holes << " black holes, "
                 << did.duplicated << " duplicated, " << did.reordered << " reordered, " << did.flipped << " flipped");
}

TEST_CASE(
    "networks that delay, split, cut and lose: every call ends with a right result or an error, and what has "
    "healed works") {
  network_test::run(false);
}

TEST_CASE("networks that damage bytes, too: every call ends, memory is bounded, and what has healed works") {
  network_test::run(true);
}

}  // namespace network_test
