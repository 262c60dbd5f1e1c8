// How long a group takes to start, to call all-to-all and to stop, beside as many processes of this program that only connect to all
// others by unix sockets and exchange a message with each (`started`: from the first fork to the last answer); and the cost of forming and changing a group of many
// workers.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <ferry/ferry.hpp>
#include <ferry/store/hash_store.hpp>

#include "support/bare_member.hpp"
#include "support/forged_group.hpp"
#include "support/handlers.hpp"
#include "support/members_in_process.hpp"
#include "support/options.hpp"
#include "support/process.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;

double milliseconds(clock_type::duration value) { return std::chrono::duration<double, std::milli>(value).count(); }

// ---------------------------------------------------------------- processes

// Arguments: init method, rank, world size ("0": dynamic).
int run_member(const std::vector<std::string>& arguments) {
  member_times times{.entered = now_of_all_processes()};
  const int rank = std::stoi(arguments.at(1));
  const int size = std::stoi(arguments.at(2));
  ferry::worker self =
      ferry::init_rpc({.rank = rank, .world_size = size, .init_method = arguments.at(0), .init_timeout = 60s});
  times.initialised = now_of_all_processes();
  std::vector<ferry::future<int>> sums;
  for (int other = 0; other != size; ++other) {
    if (other != rank) sums.push_back(self.rpc_async<remote::add>(ferry::worker_id{other}, 1, 2));
  }
  for (auto& sum : sums) (void)sum.get();
  times.called = now_of_all_processes();
  times.descriptors = open_descriptors();
  write_all(control_descriptor, &times, sizeof times);
  self.shutdown();
  return 0;
}

struct group_times {
  std::vector<double> start;  // from the first fork to the last init_rpc
  std::vector<double> call;   // from there to the last answer
  std::vector<double> stop;   // from there to the end of the last process
  std::vector<double> total;
  std::vector<double> started;      // from the first fork to the last answer
  std::vector<double> descriptors;  // of one worker, at most
};

// Starts the members, of which each gets these arguments, its rank and the size, and waits for their end. `started` is called between.
template <class Started>
void run_members(const char* role, const std::string& argument, int size, group_times& out, const Started& started) {
  const std::int64_t begin = now_of_all_processes();
  std::vector<child_process> members;
  for (int rank = 0; rank != size; ++rank) {
    members.emplace_back(role, std::vector<std::string>{argument, std::to_string(rank), std::to_string(size)});
  }
  started(members);
  std::int64_t initialised = 0;
  std::int64_t called = 0;
  std::uint64_t descriptors = 0;
  for (const auto& each : members) {
    member_times times;
    if (!read_all(each.control(), &times, sizeof times)) throw std::runtime_error("a member has failed");
    initialised = std::max(initialised, times.initialised);
    called = std::max(called, times.called);
    descriptors = std::max(descriptors, times.descriptors);
  }
  for (auto& each : members) each.stop();
  const std::int64_t end = now_of_all_processes();
  const auto ms = [](std::int64_t from, std::int64_t to) { return static_cast<double>(to - from) / 1e6; };
  out.start.push_back(ms(begin, initialised));
  out.call.push_back(ms(initialised, called));
  out.stop.push_back(ms(called, end));
  out.total.push_back(ms(begin, end));
  out.started.push_back(ms(begin, called));
  out.descriptors.push_back(static_cast<double>(descriptors));
}

void run_group(int size, group_times& out) {
  run_members("member", "tcp://127.0.0.1:" + std::to_string(free_port()), size, out, [](const auto&) {});
}

// The same without ferry.
void run_bare_group(int size, group_times& out) {
  std::string folder = (std::filesystem::temp_directory_path() / "ferry_startup_XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw std::system_error(errno, std::generic_category(), "mkdtemp");
  const auto remove = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  };
  try {
    run_members("bare", folder, size, out, [](const std::vector<child_process>& members) {
      char ready = 0;
      for (const auto& each : members) {
        if (!read_all(each.control(), &ready, 1)) throw std::runtime_error("a process of the baseline has failed");
      }
      for (const auto& each : members) write_all(each.control(), &ready, 1);
    });
  } catch (...) {
    remove();
    throw;
  }
  remove();
}

void measure_processes(report& out, const options& chosen) {
  for (const int size : {2, 4, 8, 16, 32, 64}) {
    const std::string name = "processes/" + std::to_string(size);
    if (!chosen.wants(name)) continue;
    out.section(name);
    group_times all;
    group_times bare;
    repeated started;
    repeated bare_started;
    for (int i = 0; i != (chosen.quick ? 1 : chosen.repeats); ++i) {
      run_group(size, all);
      started.add(all.started.back());
      if (chosen.alone) continue;
      run_bare_group(size, bare);
      bare_started.add(bare.started.back());
    }
    const auto add = [&](const std::string& what, std::vector<double>& values, const std::string& unit, double bound) {
      out.add({.name = name + "/" + what, .value = quantile(values, 0.5), .unit = unit, .n = values.size()},
              bound == 0 ? std::nullopt : std::optional(target{bound, false, false}));
    };
    out.add(name + "/started", started, "ms", "bare processes", chosen.alone ? nullptr : &bare_started,
            started.values().size(), size == 16 || size == 64 ? std::optional(target{2, false, true}) : std::nullopt);
    add("initialise", all.start, "ms", size == 16 ? 150 : 0);
    add("call-all-to-all", all.call, "ms", size == 16 ? 300 : 0);
    add("stop", all.stop, "ms", 0);
    add("total", all.total, "ms", size == 64 ? 2000 : 0);
    add("descriptors-of-a-worker", all.descriptors, "", 0);
  }
}

// ---------------------------------------------------------------- many workers in one process

struct simulated {
  member_listener events;
  std::unique_ptr<ferry::agent> agent;
};

class simulated_group {
 public:
  explicit simulated_group(int size, bool dynamic) : size_(size), dynamic_(dynamic) {
    for (int rank = 0; rank != size; ++rank) workers_.push_back(std::make_unique<simulated>());
  }
  ~simulated_group() {
    for (auto& each : workers_) {
      if (each->agent) each->agent->close();
    }
  }
  simulated& operator[](int rank) { return *workers_.at(static_cast<std::size_t>(rank)); }
  void join(int rank) {
    ferry::worker_config config{
        .name = std::string("w").append(std::to_string(rank)), .rank = rank, .world_size = dynamic_ ? 0 : size_};
    config.rpc_timeout = 300s;
    config.transports = {"inproc"};
    simulated& own = (*this)[rank];
    own.agent = ferry::backend_list<ferry::native>::factories().front().init(
        std::make_shared<counting_store>(content_->share(), traffic_), config, config.options());
    own.agent->join(own.events);
  }
  [[nodiscard]] double requests_each() const { return static_cast<double>(traffic_.requests.load()) / size_; }

 private:
  const int size_;
  const bool dynamic_;
  std::shared_ptr<ferry::hash_store> content_ = std::make_shared<ferry::hash_store>();
  store_traffic traffic_;
  std::vector<std::unique_ptr<simulated>> workers_;
};

void together(int size, const std::function<void(int)>& action) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr failure;
  for (int rank = 0; rank != size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        action(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
    });
  }
  for (auto& each : threads) each.join();
  if (failure) std::rethrow_exception(failure);
}

void measure_static(report& out, const options& chosen, int size) {
  const std::string name = "static/" + std::to_string(size);
  if (!chosen.wants(name)) return;
  out.section(name);
  const double memory_before = resident_kib(0);
  simulated_group group(size, false);
  const auto begin = clock_type::now();
  together(size, [&](int rank) { group.join(rank); });
  const double start = milliseconds(clock_type::now() - begin);
  const double memory = resident_kib(0) - memory_before;
  const double requests = group.requests_each();
  const auto leave = clock_type::now();
  together(size, [&](int rank) { group[rank].agent->leave_together({}); });
  out.add({.name = name + "/form", .value = start, .unit = "ms", .n = 1});
  out.add({.name = name + "/form-per-worker", .value = start / size, .unit = "ms", .n = 1});
  out.add({.name = name + "/store-requests-per-worker", .value = requests, .unit = "", .n = 1});
  out.add({.name = name + "/memory-per-worker", .value = memory / size, .unit = "KiB", .n = 1});
  out.add({.name = name + "/part", .value = milliseconds(clock_type::now() - leave), .unit = "ms", .n = 1});
}

void measure_dynamic(report& out, const options& chosen, int size) {
  const std::string name = "dynamic/" + std::to_string(size);
  if (!chosen.wants(name)) return;
  out.section(name);
  simulated_group group(size, true);
  const auto begin = clock_type::now();
  std::vector<double> joins;
  for (int rank = 0; rank != size; ++rank) {
    const auto before = clock_type::now();
    group.join(rank);
    joins.push_back(milliseconds(clock_type::now() - before));
  }
  std::vector<double> last(joins.end() - std::min<std::ptrdiff_t>(16, size), joins.end());
  for (int rank = 0; rank != size; ++rank) group[rank].events.wait_for(size);
  const double all = milliseconds(clock_type::now() - begin);
  out.add({.name = name + "/join-one-by-one",
           .value = all,
           .unit = "ms",
           .n = 1,
           .note = "until all members know all others"});
  out.add({.name = name + "/last-joins", .value = quantile(last, 0.5), .unit = "ms", .n = last.size()});
  out.add({.name = name + "/store-requests-per-worker", .value = group.requests_each(), .unit = "", .n = 1});
  const auto before = clock_type::now();
  for (int rank = 0; rank != size; ++rank) group[rank].agent->leave({});
  out.add(
      {.name = name + "/leave-one-by-one", .value = milliseconds(clock_type::now() - before), .unit = "ms", .n = 1});
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  run_role(argc, argv, {{"member", run_member}, {"bare", run_bare_member}});
  const options chosen =
      read_options(argc, argv, "startup: time to start a group, to call all-to-all and to stop it, by world size");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(600));
  ferry::set_log_level(ferry::log_level::error);
  try {
    report out("startup", chosen);
    measure_processes(out, chosen);
    for (const int size : {10, 100, 1000}) measure_static(out, chosen, size);
    for (const int size : {10, 100, 1000}) measure_dynamic(out, chosen, size);
    for (const int size : {1000, 10'000}) measure_forged_static(out, chosen, size);
    for (const int size : {1000, 10'000}) measure_forged_dynamic(out, chosen, size);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "startup: %s\n", e.what());
    return 1;
  }
}
