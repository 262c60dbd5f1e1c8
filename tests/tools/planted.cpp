// A group with a fault in it, for ferry-top to find: planted SCENARIO INIT_METHOD RANK WORLD_SIZE. Prints "planted" once the
// fault is there; ends when its standard input does.
//
//   nothing   the workers call each other, and wait
//   busy      they call each other until the end
//   deadlock  worker1 and worker2 each hold a lock of their own and wait for the other's
//   slow      worker2 takes long for every call
//   hetero    worker2 serves a method that takes long, the others one that does not
//   nested    worker0 waits for worker1, whose handler waits for worker0, whose handler waits for worker2, which computes for ever
//   reduce    worker0 and worker1 wait in an all_reduce that worker2, which computes, does not call
//   barrier   the same in a barrier
//   groups    worker1 and worker2 wait for each other in collectives of two groups
//   inside    worker0 waits for worker1, whose handler waits in an all_reduce that worker2 does not call
//   beside    the same as reduce, but worker2 waits for a handler of worker0 that computes for ever
//   subsets   worker1 waits for worker2 in a barrier, worker2 for worker1 in a collective
//   stuck     worker1 waits in a handler for worker2, whose handler computes for ever

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ferry/ferry.hpp>
#include <ferry/profiler.hpp>

#include <poll.h>
#include <unistd.h>

namespace planted {

std::timed_mutex lock_of_worker;
std::mutex mutex;  // guards the next three
std::condition_variable changed;
int arrived = 0;
bool over = false;

// At worker0: until both have come.
void meet() {
  std::unique_lock lock(mutex);
  ++arrived;
  changed.notify_all();
  changed.wait(lock, [] { return arrived >= 2 || over; });
}

// A lock that the end of the program gives up.
bool take_lock() {
  for (;;) {
    if (lock_of_worker.try_lock_for(std::chrono::milliseconds(20))) return true;
    const std::lock_guard lock(mutex);
    if (over) return false;
  }
}

void take_both(const std::string& other);
void take_own() {
  if (take_lock()) lock_of_worker.unlock();
}
void take_both(const std::string& other) {
  if (!take_lock()) return;
  const std::lock_guard held(lock_of_worker, std::adopt_lock);
  ferry::rpc_sync<meet>({"worker0", {.timeout = ferry::no_timeout}});
  ferry::rpc_sync<take_own>({other, {.timeout = ferry::no_timeout}});
}

int work(int value) { return value + 1; }
int work_slowly(int of);
int work_here(int value) { return ferry::get_worker_info().name() == "worker2" ? work_slowly(value) : work(value); }
int work_slowly(int of) {
  auto value = static_cast<unsigned>(of);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  while (std::chrono::steady_clock::now() < until) value = value * 3 + 1;
  return static_cast<int>(value % 1000);
}

void compute_for_ever() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [] { return over; });
}
void ask_worker2();
void ask_worker0() { ferry::rpc_sync<ask_worker2>({"worker0", {.timeout = ferry::no_timeout}}); }
void ask_worker2() { ferry::rpc_sync<compute_for_ever>({"worker2", {.timeout = ferry::no_timeout}}); }

void end_here() {
  const std::lock_guard lock(mutex);
  over = true;
  changed.notify_all();
}

void wait_for_end_of_input() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) != 0) {
    if (errno != EINTR) continue;
  }
}

// Until the input ends.
void call_all(const ferry::worker& self) {
  for (int i = 0;; ++i) {
    const ferry::profiler::range one("one round");
    for (const ferry::worker_info& each : self.workers()) (void)self.rpc_sync<work>(each.id(), i);
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, 0) != 0) return;
  }
}

void wait_for_end() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [] { return over; });
}

// Where all take part. Others than worker0 return at the end.
ferry::process_group group_of_all;
void reduce_here() {
  const ferry::process_group group = group_of_all;
  group.all_reduce(ferry::ones({3}), ferry::reduce_op::sum, ferry::no_timeout).get();
}
void plant_collective(const ferry::worker& self, const std::string& scenario,
                      std::vector<ferry::future<void>>& waiting) {
  const int rank = self.id().value;
  group_of_all = ferry::process_group(self, ferry::all_workers, {.name = "planted"});
  self.barrier();  // all have it
  const auto begin = [&](const ferry::process_group& in) {
    waiting.push_back(in.all_reduce(ferry::ones({3}), ferry::reduce_op::sum, ferry::no_timeout));
  };
  if (scenario == "reduce") {
    if (rank == 2) wait_for_end();
    begin(group_of_all);
  } else if (scenario == "groups") {
    const ferry::process_group other(self, ferry::all_workers, {.name = "other"});
    if (rank != 0) begin(rank == 1 ? group_of_all : other);
    if (rank != 0) wait_for_end();
    if (rank != 1) begin(group_of_all);
    if (rank != 2) begin(other);
  } else if (scenario == "beside") {
    if (rank == 2) self.rpc_sync<compute_for_ever>({"worker0", {.timeout = ferry::no_timeout}});
    begin(group_of_all);
  } else if (scenario == "subsets" && rank != 0) {
    const ferry::process_group two(self, {"worker1", "worker2"}, {.name = "of two"});
    std::thread in_barrier;
    const auto enter_barrier = [&] {
      in_barrier = std::thread([&self] { self.barrier({"worker1", "worker2"}, ferry::no_timeout); });
    };
    if (rank == 1) enter_barrier();
    if (rank == 2) begin(two);
    wait_for_end();
    if (rank == 2) enter_barrier();
    if (rank == 1) begin(two);
    in_barrier.join();
  } else if (scenario == "inside") {
    if (rank == 0) {
      waiting.push_back(self.rpc_async<reduce_here>({"worker1", {.timeout = ferry::no_timeout}}));
      begin(group_of_all);
    }
    if (rank != 0) wait_for_end();
    if (rank == 2) begin(group_of_all);
  }
}

void plant(const ferry::worker& self, const std::string& scenario, std::vector<ferry::future<void>>& waiting) {
  if (scenario == "deadlock") {
    waiting.push_back(self.rpc_async<take_both>({"worker1", {.timeout = ferry::no_timeout}}, std::string("worker2")));
    waiting.push_back(self.rpc_async<take_both>({"worker2", {.timeout = ferry::no_timeout}}, std::string("worker1")));
    std::unique_lock lock(mutex);
    changed.wait(lock, [] { return arrived == 2; });
  } else if (scenario == "stuck") {
    for (int i = 0; i != 3; ++i)
      waiting.push_back(self.rpc_async<ask_worker2>({"worker1", {.timeout = ferry::no_timeout}}));
  } else if (scenario == "nested") {
    waiting.push_back(self.rpc_async<ask_worker0>({"worker1", {.timeout = ferry::no_timeout}}));
  } else {
    for (int i = 0; i != 10; ++i) {
      for (const ferry::worker_info& each : self.workers()) {
        if (scenario == "slow") {
          (void)self.rpc_sync<work_here>(each.id(), i);
        } else if (scenario == "hetero" && each.name() == "worker2") {
          (void)self.rpc_sync<work_slowly>(each.id(), i);
        } else {
          (void)self.rpc_sync<work>(each.id(), i);
        }
      }
    }
  }
}

int run(const std::string& scenario, const std::string& meeting, int rank, int size) {
  ferry::worker self = ferry::init_rpc({.rank = rank, .world_size = size, .init_method = meeting});
  std::vector<ferry::future<void>> waiting;
  std::thread in_barrier;
  const bool collective = scenario == "reduce" || scenario == "groups" || scenario == "inside" ||
                          scenario == "beside" || scenario == "subsets";
  if (collective) plant_collective(self, scenario, waiting);
  if (scenario == "barrier") {
    if (rank == 2) wait_for_end();
    in_barrier = std::thread([&self] { self.barrier(ferry::all_workers, ferry::no_timeout); });
  }
  if (rank == 0) {
    if (!collective && scenario != "barrier") plant(self, scenario, waiting);
    std::cout << "planted" << std::endl;
    if (scenario == "busy") call_all(self);
    wait_for_end_of_input();
    for (int other = size - 1; other >= 0; --other) self.rpc_sync<end_here>(other);
  }
  for (const auto& each : waiting) each.wait();
  if (in_barrier.joinable()) in_barrier.join();
  group_of_all = {};
  self.shutdown();
  return 0;
}

}  // namespace planted

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw std::runtime_error("usage: planted SCENARIO INIT_METHOD RANK WORLD_SIZE");
    return planted::run(argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  } catch (const std::exception& problem) {
    std::cerr << problem.what() << '\n';
    return 1;
  }
}
