// Eight workers that call each other without pause while they are killed, restarted, suspended, resumed, disconnected,
// and made to leave and rejoin. Every call ends, results are correct, and no resources leak.
//
// FERRY_CHAOS_SECONDS (10) sets the duration, FERRY_CHAOS_SEED the sequence of events; the seed of a run is printed.

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/tensor/factories.hpp>

#include "processes.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace chaos_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::child_process;

constexpr int workers = 8;
constexpr auto heartbeat = 100ms;
constexpr auto lease = 1000ms;

std::string name_of(int slot) { return "w-" + std::to_string(slot); }

// ---- the functions that they call

int add(int a, int b) { return a + b; }
// Adds one for each worker on the route.
int relay(const std::vector<std::string>& way, int value) {
  if (way.empty()) return value + 1;
  return ferry::rpc_sync<relay>(way.front(), std::vector<std::string>(way.begin() + 1, way.end()), value + 1);
}
ferry::task<int> relay_later(std::vector<std::string> way, int value) {
  if (way.empty()) co_return value + 1;
  std::vector<std::string> rest(way.begin() + 1, way.end());
  co_return co_await ferry::rpc_async<relay_later>(way.front(), rest, value + 1);
}
ferry::tensor twice(ferry::tensor t) {
  auto* values = t.data<float>();
  for (std::int64_t i = 0; i != t.numel(); ++i) values[i] *= 2;
  return t;
}
// Ends at the latest when its caller gives up.
int dawdle() {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  (void)never.wait_for(lock, ferry::this_call().stop_token(), 200ms, [] { return false; });
  return 3;
}
std::atomic<int> received{0};
void count_one_way(int) { ++received; }

// ---- a worker

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

std::size_t entries_of(const char* directory) {
  const std::filesystem::directory_iterator all(directory);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

class member {
 public:
  member(std::string meeting, std::string name, unsigned seed)
      : meeting_(std::move(meeting)), name_(std::move(name)), seed_(seed) {}

  void join() {
    // The death of a predecessor, or of this process's earlier incarnation, may take a lease to be detected.
    self_ = ferry::init_rpc({.name = name_,
                             .rank = ferry::any_rank,
                             .init_method = meeting_,
                             .num_worker_threads = 4,
                             .heartbeat_interval = heartbeat,
                             .lease = lease,
                             .init_timeout = 60s,
                             .exit_timeout = 5s});
    stop_ = false;
    for (unsigned i = 0; i != 2; ++i) threads_.emplace_back([this, i] { call_all(seed_ + i); });
  }
  /// Ends all calls, then leaves or shuts down.
  void stop_worker(bool graceful) {
    stop_ = true;
    for (auto& each : threads_) each.join();
    threads_.clear();
    try {
      if (graceful) {
        self_.leave();
      } else {
        self_.shutdown(false);
      }
    } catch (const ferry::error& e) {
      if (!may_happen(e.kind()) && e.kind() != errc::shutdown_timeout) count_unexpected(e.what());
    }
    self_ = {};
  }
  [[nodiscard]] bool fenced() const { return self_.fenced(); }
  [[nodiscard]] std::string report() const {
    std::ostringstream text;
    text << "done " << calls_ << ' ' << good_ << ' ' << wrong_ << ' ' << unexpected_;
    return text.str();
  }
  void count_unexpected(const char* what) {
    ++unexpected_;
    std::fprintf(stderr, "%s: unexpected: %s\n", name_.c_str(), what);
  }

 private:
  template <class Call>
  void attempt(const Call& call) {
    ++calls_;
    const auto begin = ferry::clock::now();
    make(call);
    // Two seconds of timeout, a suspension of this process, and a busy machine.
    if (ferry::clock::now() - begin > 20s) count_unexpected("a call took more than 20 s");
  }
  template <class Call>
  void make(const Call& call) {
    try {
      if (call()) {
        ++good_;
      } else {
        ++wrong_;
      }
    } catch (const ferry::error& e) {
      if (!may_happen(e.kind())) count_unexpected(e.what());
    } catch (const std::exception& e) {
      count_unexpected(e.what());
    }
  }

  void call_all(unsigned seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random); };
    const auto any_worker = [&] { return name_of(below(workers)); };
    constexpr std::array<std::chrono::milliseconds, 3> limits{20ms, 200ms, 2000ms};
    while (!stop_ && !self_.fenced()) {
      const std::string callee = any_worker();
      const ferry::timeout limit = limits[static_cast<std::size_t>(below(3))];
      const ferry::to there{callee, {.timeout = limit}};
      switch (below(7)) {
        case 0: {
          const int a = below(1000);
          attempt([&] { return self_.rpc_sync<add>(there, a, 7) == a + 7; });
          break;
        }
        case 1: {
          std::vector<std::string> way;
          for (int i = below(4); i != 0; --i) way.push_back(any_worker());
          const int expected = static_cast<int>(way.size()) + 1;
          attempt([&] { return self_.rpc_sync<relay>(there, way, 0) == expected; });
          attempt([&] { return self_.rpc_sync<relay_later>(there, way, 0) == expected; });
          break;
        }
        case 2: {
          const auto size = 1 + below(50000);
          const ferry::tensor sent = ferry::full({size}, 1.5F);
          attempt([&] {
            ferry::tensor got = self_.rpc_sync<twice>(there, sent);
            const auto* values = got.data<float>();
            return got.numel() == size && std::accumulate(values, values + size, 0.0) == 3.0 * size;
          });
          break;
        }
        case 3: {
          std::vector<ferry::future<int>> sums;
          for (int i = 0; i != 8; ++i) {
            attempt([&] {
              sums.push_back(self_.rpc_async<add>(there, i, i));
              return true;
            });
          }
          for (auto& sum : sums) {
            attempt([&] { return sum.get() % 2 == 0; });
          }
          break;
        }
        case 4: attempt([&] { return self_.rpc_sync<dawdle>(there) == 3; }); break;
        case 5: {
          attempt([&] {
            auto given_up = self_.rpc_async<dawdle>(there);
            given_up.cancel();
            return true;
          });
          break;
        }
        default:
          attempt([&] {
            self_.notify<count_one_way>(there, 1);
            return true;
          });
      }
    }
  }

  const std::string meeting_;
  const std::string name_;
  const unsigned seed_;
  ferry::worker self_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
  std::atomic<long> calls_{0};
  std::atomic<long> good_{0};
  std::atomic<long> wrong_{0};
  std::atomic<long> unexpected_{0};
};

// Resources that must not grow once a worker has left: the library keeps its threads for the next one, but adds none.
struct leftovers {
  std::size_t threads = entries_of("/proc/self/task");
  std::size_t descriptors = entries_of("/proc/self/fd");
};

void print_leftovers(const std::string& name) {
  std::string text = name + " still has";
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string about;
    std::getline(std::ifstream(each.path() / "comm"), about);
    text += "\n  thread " + about;
  }
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    text += "\n  descriptor " + std::filesystem::read_symlink(each.path(), gone).string();
  }
  std::fprintf(stderr, "%s\n", text.c_str());
}

// Arguments: init method, name, seed. Commands: "leave" (and rejoin), "break", "stop"; rejoins after it was fenced.
const ferry_test::role chaos_member("chaos member", [](const std::vector<std::string>& arguments) {
  ferry::set_log_level(ferry::log_level::error);
  member self(arguments.at(0), arguments.at(1), static_cast<unsigned>(std::stoul(arguments.at(2))));
  self.join();
  self.stop_worker(true);
  (void)ferry::shared_allocator()
      .stats();  // a descriptor of the process, made at the latest with its first connection over shm
  const leftovers before;
  self.join();
  std::mutex mutex;
  std::condition_variable changed;
  std::string order;
  std::thread reader([&] {
    for (std::string line; line != "stop";) {
      line = ferry_test::ask_parent();
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return order.empty(); });
      order = line;
      changed.notify_all();
    }
  });
  for (bool done = false; !done;) {
    std::string what;
    {
      std::unique_lock lock(mutex);
      // Polls for a fence: only failing calls report it.
      (void)changed.wait_for(lock, 20ms, [&] { return !order.empty(); });
      what = order;
    }
    done = what == "stop";
    if (what == "break") ferry_test::break_connections();
    if (done || what == "leave" || self.fenced()) {
      self.stop_worker(!self.fenced());
      if (!done) self.join();
    }
    if (!what.empty()) {
      const std::lock_guard lock(mutex);
      order.clear();
      changed.notify_all();
    }
  }
  reader.join();
  // Threads that replaced waiting handlers end by themselves.
  leftovers after;
  for (const auto until = ferry::clock::now() + 30s; ferry::clock::now() < until; after = {}) {
    if (after.threads <= before.threads && after.descriptors <= before.descriptors) break;
    std::this_thread::yield();
  }
  if (after.threads > before.threads || after.descriptors > before.descriptors) print_leftovers(arguments.at(1));
  std::ostringstream text;
  text << self.report() << ' ' << before.threads << ' ' << after.threads << ' ' << before.descriptors << ' '
       << after.descriptors;
  ferry_test::tell_parent(text.str());
  return 0;
});

long setting(const char* variable, long usual) {
  const char* text = std::getenv(variable);
  return text ? std::stol(text) : usual;
}

TEST_CASE(
    "workers that are killed, suspended, disconnected and restarted: every call ends with a correct result or an "
    "error") {
  const auto length = std::chrono::seconds(setting("FERRY_CHAOS_SECONDS", 10));
  const auto seed =
      static_cast<unsigned>(setting("FERRY_CHAOS_SEED", static_cast<long>(std::random_device()() % 100000)));
  MESSAGE("FERRY_CHAOS_SEED=" << seed << " FERRY_CHAOS_SECONDS=" << length.count());
  CAPTURE(seed);
  const ferry_test::watchdog dog("chaos", length + 240s);
  const ferry_test::temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  std::mt19937 random(seed);
  const auto below = [&](int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random); };

  unsigned started = 0;
  const auto start = [&](int slot) {
    return std::make_unique<child_process>(ferry_test::child_options{
        .role = "chaos member", .arguments = {meeting, name_of(slot), std::to_string(seed + 100 * ++started)}});
  };
  std::vector<std::unique_ptr<child_process>> group;
  for (int slot = 0; slot != workers; ++slot) group.push_back(start(slot));
  std::vector<ferry::clock::time_point> suspended(workers);  // suspended until then; zero: running
  std::array<int, 4> happened{};
  const auto resume = [&](bool all) {
    for (int slot = 0; slot != workers; ++slot) {
      auto& until = suspended[static_cast<std::size_t>(slot)];
      if (until == ferry::clock::time_point() || (!all && ferry::clock::now() < until)) continue;
      group[static_cast<std::size_t>(slot)]->kill(SIGCONT);
      until = {};
    }
  };
  for (const auto end = ferry::clock::now() + length; ferry::clock::now() < end;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50 + below(300)));  // the pace of events
    resume(false);
    const int slot = below(workers);
    auto& child = group[static_cast<std::size_t>(slot)];
    if (suspended[static_cast<std::size_t>(slot)] != ferry::clock::time_point()) continue;
    const int what = below(4);
    ++happened[static_cast<std::size_t>(what)];
    switch (what) {
      case 0:
        child->kill(SIGKILL);
        CHECK(child->wait() == 128 + SIGKILL);
        child = start(slot);
        break;
      case 1:
        child->kill(SIGSTOP);
        suspended[static_cast<std::size_t>(slot)] = ferry::clock::now() + std::chrono::milliseconds(100 + below(2500));
        break;
      case 2: child->write_line("leave"); break;
      default: child->write_line("break");
    }
  }
  resume(true);
  for (const auto& each : group) each->write_line("stop");
  long calls = 0;
  long good = 0;
  for (int slot = 0; slot != workers; ++slot) {
    CAPTURE(slot);
    auto& child = *group[static_cast<std::size_t>(slot)];
    std::istringstream answer(child.read_line());
    std::string word;
    std::array<long, 8> figures{};
    answer >> word;
    for (long& each : figures) answer >> each;
    CHECK(word == "done");
    CHECK(static_cast<bool>(answer));
    CHECK(figures[2] == 0);           // wrong results
    CHECK(figures[3] == 0);           // unexplained errors
    CHECK(figures[5] <= figures[4]);  // threads
    CHECK(figures[7] <= figures[6]);  // descriptors
    CHECK(child.wait() == 0);
    calls += figures[0];
    good += figures[1];
  }
  MESSAGE(calls << " calls by surviving workers, " << good << " of them answered; killed " << happened[0]
                << ", suspended " << happened[1] << ", left and rejoined " << happened[2] << ", disconnected "
                << happened[3]);
  CHECK(good > 0);
  // The group has no other members left, not even a name.
  ferry::worker last = ferry::init_rpc({.name = "last",
                                        .rank = ferry::any_rank,
                                        .init_method = meeting,
                                        .heartbeat_interval = heartbeat,
                                        .lease = lease});
  CHECK(last.workers().size() == 1);
}

}  // namespace chaos_test
