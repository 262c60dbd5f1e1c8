// Gathers between processes, and the effect of a killed process on waiting members.

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/types/string.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "group/gather_rounds.hpp"
#include "processes.hpp"

namespace group_processes_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::child_process;
using ferry_test::worker_name;

int plus_one(int value) { return value + 1; }

ferry::worker join(const std::string& meeting, int rank, int size) {
  return ferry::init_rpc(
      {.name = worker_name(rank), .rank = rank, .world_size = size, .init_method = meeting, .rpc_timeout = 100s});
}

// Gathers and waits like the test below, then shuts down without waiting.
const ferry_test::role peer("group peer", [](const std::vector<std::string>& arguments) {
  const int rank = std::stoi(arguments.at(1));
  ferry::worker self = join(arguments.at(0), rank, std::stoi(arguments.at(2)));
  for (int round = 0; round != 20; ++round) {
    if (self.all_gather(self.name() + std::to_string(round)).at("worker0") != "worker0" + std::to_string(round))
      return 2;
    self.barrier({"worker1", "worker2"});
  }
  std::vector<std::function<void()>> threads(3, [&] {
    for (int i = 0; i != 10; ++i) self.barrier();
  });
  ferry_test::run_together(threads);
  if (rank == 1) {
    for (int i = 0; i != 100; ++i) (void)self.rpc_sync<plus_one>(i % 3, i);
  }
  self.barrier();
  self.barrier();
  self.shutdown(false);
  return 0;
});

// Waits at a barrier that not all workers call.
int wait_at_barrier(const std::vector<std::string>& arguments) {
  ferry::worker self = join(arguments.at(0), std::stoi(arguments.at(1)), std::stoi(arguments.at(2)));
  ferry_test::tell_parent("joined");
  try {
    self.barrier(ferry::all_workers, ferry::no_timeout);
  } catch (const ferry::error& problem) {
    ferry_test::tell_parent(problem.what());
  }
  (void)ferry_test::ask_parent();
  self.shutdown(false);
  return 0;
}
const ferry_test::role waiting("group waiting", wait_at_barrier);

// Like wait_at_barrier, but worker2 does not call barrier().
const ferry_test::role without_last("group without worker2", [](const std::vector<std::string>& arguments) {
  if (arguments.at(1) != "2") return wait_at_barrier(arguments);
  ferry::worker self = join(arguments.at(0), 2, std::stoi(arguments.at(2)));
  ferry_test::tell_parent("joined");
  (void)ferry_test::ask_parent();
  return 0;
});

// This process is `own_rank`, the others are children.
class group {
 public:
  group(int size, const std::string& role, int own_rank) {
    const std::string meeting = "file://" + directory_.file("store");
    for (int rank = 0; rank != size; ++rank) {
      children.push_back(rank == own_rank
                             ? nullptr
                             : std::make_unique<child_process>(ferry_test::child_options{
                                   .role = role, .arguments = {meeting, std::to_string(rank), std::to_string(size)}}));
    }
    self = join(meeting, own_rank, size);
  }
  std::vector<std::unique_ptr<child_process>> children;

 private:
  ferry_test::temporary_directory directory_;
  ferry_test::watchdog watchdog_{"a group of processes"};

 public:
  ferry::worker self;
};

TEST_CASE("[row 134] [row 136] [row 137] processes gather, wait at barriers, then shut down without waiting") {
  for (int again = 0; again != 3; ++again) {
    group all(3, "group peer", 0);
    ferry::worker& self = all.self;
    for (int round = 0; round != 20; ++round) {
      const auto texts = self.all_gather(self.name() + std::to_string(round));
      for (int rank = 0; rank != 3; ++rank) {
        CHECK(texts.at(worker_name(rank)) == worker_name(rank) + std::to_string(round));
      }
    }
    std::vector<std::function<void()>> threads(3, [&] {
      for (int i = 0; i != 10; ++i) self.barrier();
    });
    ferry_test::run_together(threads);
    self.barrier();
    self.barrier();
    self.shutdown(false);
    for (const int rank : {1, 2}) CHECK(all.children[static_cast<std::size_t>(rank)]->wait() == 0);
  }
}

TEST_CASE("a member that is killed while it waits ends the wait of the others, and is named") {
  captured_log log;
  group all(3, "group waiting", 0);
  CHECK(all.children[1]->read_line() == "joined");
  CHECK(all.children[2]->read_line() == "joined");
  // Both are waiting here; this worker, which collects, does not call barrier().
  const auto rounds = ferry::detail::gather_rounds::of(*all.self.core());
  while (rounds->waiting_members() != 2) std::this_thread::yield();
  all.children[2]->kill(SIGKILL);
  CHECK(all.children[1]->read_line().find("worker2 was lost, or cancelled its call, while it waited for worker0") !=
        std::string::npos);
  all.children[1]->write_line("leave");
  CHECK(all.children[1]->wait() == 0);
  all.self.shutdown(false);
}

TEST_CASE("a member that is killed before it calls barrier is no longer waited for") {
  captured_log log;
  group all(3, "group without worker2", 0);
  CHECK(all.children[1]->read_line() == "joined");
  CHECK(all.children[2]->read_line() == "joined");
  CHECK(all.self.rpc_sync<plus_one>("worker2", 1) == 2);
  const auto rounds = ferry::detail::gather_rounds::of(*all.self.core());
  while (rounds->waiting_members() != 1) std::this_thread::yield();
  all.children[2]->kill(SIGKILL);
  CHECK(all.children[1]->read_line().find("worker2, which had not called it, is dead") != std::string::npos);
  // Later barriers do not wait for it, either.
  try {
    all.self.barrier({"worker0", "worker2"}, ferry::no_timeout);
    FAIL_CHECK("a barrier without worker2");
  } catch (const ferry::error& problem) {
    CHECK(problem.kind() == errc::peer_lost);
  }
  all.children[1]->write_line("leave");
  CHECK(all.children[1]->wait() == 0);
  all.self.shutdown(false);
}

TEST_CASE("killing the collecting worker ends the wait of all members at once") {
  captured_log log;
  group all(3, "group waiting", 2);
  CHECK(all.children[0]->read_line() == "joined");
  CHECK(all.children[1]->read_line() == "joined");
  // worker1 waits for worker0's answer, or is about to call it.
  CHECK(all.self.rpc_sync<plus_one>("worker0", 1) == 2);
  all.children[0]->kill(SIGKILL);
  CHECK(all.children[0]->wait() == 128 + SIGKILL);
  try {
    all.self.barrier(ferry::all_workers, ferry::no_timeout);
    FAIL_CHECK("a barrier without worker0");
  } catch (const ferry::error& problem) {
    CHECK((problem.kind() == errc::connect_failed || problem.kind() == errc::peer_lost));
    CHECK(std::string(problem.what()).find("at the collecting worker worker0") != std::string::npos);
  }
  CHECK(all.children[1]->read_line().find("worker0") != std::string::npos);
  all.children[1]->write_line("leave");
  CHECK(all.children[1]->wait() == 0);
  all.self.shutdown(false);
}

}  // namespace group_processes_test
