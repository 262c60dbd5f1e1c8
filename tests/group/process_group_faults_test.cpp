// How collectives end that cannot succeed: on every member, with one text that names a culprit.

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "processes.hpp"

using namespace std::chrono_literals;
using ferry::algorithm;
using ferry::collective;
using ferry::errc;
using ferry::process_group;
using ferry::reduce_op;
using ferry::tensor;
using ferry_test::captured_log;
using ferry_test::child_process;
using ferry_test::run_cluster;
using ferry_test::worker_name;

namespace process_group_faults_test {

struct ending {
  errc kind = {};
  std::string text;
};
ending end_of(ferry::future<void> pending) {
  try {
    pending.get();
  } catch (const ferry::error& problem) {
    return {problem.kind(), std::string(problem.message())};
  }
  return {};
}
bool has(const ending& end, std::string_view text) { return end.text.find(text) != std::string::npos; }

// A member of the processes below: makes groups and collectives as the parent says, and tells how they end.
const ferry_test::role member("process_group member", [](const std::vector<std::string>& arguments) {
  const int rank = std::stoi(arguments.at(1));
  ferry::worker self = ferry::init_rpc({.name = worker_name(rank),
                                        .rank = rank,
                                        .world_size = std::stoi(arguments.at(2)),
                                        .init_method = arguments.at(0),
                                        .rpc_timeout = 100s});
  process_group group(self, ferry::all_workers,
                      {.chunk = 4096, .plan = {{.op = collective::all_reduce, .use = algorithm::ring}}});
  ferry_test::tell_parent("ready");
  for (;;) {
    const std::string order = ferry_test::ask_parent();
    if (order == "leave") break;
    if (order == "shrink") {
      group = group.shrink();
      ferry_test::tell_parent(std::to_string(group.rank()) + " of " + std::to_string(group.size()));
      continue;
    }
    const tensor t = ferry::ones({order == "large" ? 1 << 18 : 64});
    const ending end = end_of(group.all_reduce(t, reduce_op::sum, ferry::no_timeout));
    ferry_test::tell_parent(end.text.empty() ? "sum " + std::to_string(static_cast<int>(t.at<float>(0))) : end.text);
  }
  self.shutdown(false);
  return 0;
});

class member_processes {
 public:
  explicit member_processes(int size) {
    const std::string meeting = "file://" + directory_.file("store");
    for (int rank = 0; rank != size; ++rank) {
      all.push_back(std::make_unique<child_process>(ferry_test::child_options{
          .role = "process_group member", .arguments = {meeting, std::to_string(rank), std::to_string(size)}}));
    }
    for (const auto& each : all) CHECK(each->read_line() == "ready");
  }
  std::vector<std::unique_ptr<child_process>> all;

 private:
  ferry_test::temporary_directory directory_;
  ferry_test::watchdog watchdog_{"processes of a process_group"};
};

}  // namespace process_group_faults_test

using namespace process_group_faults_test;

TEST_CASE(
    "process_group: a limit that passes ends the collective on every member and names those that have not called it") {
  run_cluster(4, [](ferry::worker& self) {
    const process_group group(self);
    const tensor t = ferry::ones({4});
    if (self.id().value != 2) {
      const ending end =
          end_of(group.all_reduce(t, reduce_op::sum, self.id().value == 0 ? ferry::timeout(3s) : ferry::no_timeout));
      CHECK(end.kind == errc::rpc_timeout);
      CHECK_MESSAGE(has(end, "all_reduce(sum) of f32 [4], collective 0 of group 'group'"), end.text);
      CHECK_MESSAGE(has(end, "timed out after 3.00 seconds, the limit of worker0; not called by worker2"), end.text);
    }
    self.barrier();
    if (self.id().value == 2) {  // comes late: gets the same, at once
      const ending end = end_of(group.all_reduce(t, reduce_op::sum, ferry::no_timeout));
      CHECK(end.kind == errc::rpc_timeout);
      CHECK_MESSAGE(has(end, "not called by worker2"), end.text);
    }
    group.all_reduce(t.fill_(1)).get();  // the group goes on
    CHECK(t.at<float>(0) == 4);
  });
}

TEST_CASE("process_group: members that differ in operation, shape, type or reduction are named, with what they call") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self);
    const bool odd = group.rank() == 1;
    const tensor t = ferry::ones({4});
    const auto expect = [&](ferry::future<void> pending, std::string_view one, std::string_view other) {
      const ending end = end_of(std::move(pending));
      CHECK(end.kind == errc::group_mismatch);
      CHECK_MESSAGE(has(end, one), end.text);
      CHECK_MESSAGE(has(end, other), end.text);
      CHECK_MESSAGE(has(end, "worker1 "), end.text);
    };
    for (int round = 0; round != 10; ++round) {
      expect(odd ? group.broadcast(t, 0) : group.all_reduce(t), "broadcast of f32 [4] with root 0",
             "all_reduce(sum) of f32 [4]");
      expect(group.all_reduce(odd ? ferry::ones({2, 2}) : t), "f32 [2, 2]", "f32 [4]");
      expect(group.all_reduce(odd ? ferry::ones({4}, ferry::dtype::f64) : t), "f64 [4]", "f32 [4]");
      expect(group.all_reduce(t, odd ? reduce_op::max : reduce_op::min), "all_reduce(max)", "all_reduce(min)");
    }
    t.fill_(2);
    group.all_reduce(t).get();
    CHECK(t.at<float>(3) == 6);
  });
}

TEST_CASE("process_group: members that differ, but send each other nothing, learn it when the limit expires") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self);
    const ending end = end_of(group.reduce(ferry::ones({4}), group.rank() == 1 ? 1 : 0, reduce_op::sum, 3s));
    if (group.rank() != 2) {  // it has sent its part, and may be done
      CHECK(end.kind == errc::group_mismatch);
      CHECK_MESSAGE(has(end, "with root 1"), end.text);
      CHECK_MESSAGE(has(end, "with root 0"), end.text);
    }
    self.barrier();
    group.barrier().get();
  });
}

TEST_CASE("process_group: a mismatch of send and receive ends it at both ends") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    const ending end =
        group.rank() == 0 ? end_of(group.send(ferry::ones({3}), 1)) : end_of(group.receive(ferry::ones({4}), 0));
    CHECK(end.kind == errc::group_mismatch);
    CHECK_MESSAGE(has(end, "from worker0 to worker1"), end.text);
  });
}

TEST_CASE("process_group: random collectives of which some fail end everywhere, and leave the group in order") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, {.chunk = 64});
    std::mt19937 random(7);
    for (int round = 0; round != 60; ++round) {
      const int odd = static_cast<int>(random() % 3);
      const int kind = static_cast<int>(random() % 3);
      const tensor t = ferry::ones({static_cast<std::int64_t>(1 + random() % 100)}, ferry::dtype::f64);
      if (kind == 0) {
        const ending end = end_of(group.rank() == odd ? group.barrier() : group.all_reduce(t));
        CHECK(end.kind == errc::group_mismatch);
      } else if (kind == 1 && round % 10 == 0) {
        if (group.rank() != odd) {
          const ending end = end_of(group.all_reduce(t, reduce_op::sum, 2s));
          CHECK(end.kind == errc::rpc_timeout);
          CHECK_MESSAGE(has(end, "not called by " + worker_name(odd)), end.text);
        }
        self.barrier();
        if (group.rank() == odd) CHECK(end_of(group.all_reduce(t, reduce_op::sum, 2s)).kind == errc::rpc_timeout);
      } else {
        group.all_reduce(t).get();
        CHECK(t.at<double>(0) == 3);
      }
    }
  });
}

TEST_CASE(
    "process_group: a member that is killed ends the collectives of all others, and shrink() gives them a group") {
  captured_log log;
  member_processes members(4);
  for (const auto& each : members.all) each->write_line("sum");
  for (const auto& each : members.all) CHECK(each->read_line() == "sum 4");
  // Two of them wait in a ring that only later steps connect with the one that dies.
  for (const int rank : {0, 1, 3}) members.all[static_cast<std::size_t>(rank)]->write_line("large");
  members.all[2]->kill(SIGKILL);
  for (const int rank : {0, 1, 3}) {
    const std::string end = members.all[static_cast<std::size_t>(rank)]->read_line();
    CHECK_MESSAGE(end.find("worker2") != std::string::npos, end);
  }
  for (const int rank : {0, 1, 3}) members.all[static_cast<std::size_t>(rank)]->write_line("shrink");
  CHECK(members.all[0]->read_line() == "0 of 3");
  CHECK(members.all[1]->read_line() == "1 of 3");
  CHECK(members.all[3]->read_line() == "2 of 3");
  for (const int rank : {0, 1, 3}) members.all[static_cast<std::size_t>(rank)]->write_line("sum");
  for (const int rank : {0, 1, 3}) CHECK(members.all[static_cast<std::size_t>(rank)]->read_line() == "sum 3");
  for (const int rank : {0, 1, 3}) members.all[static_cast<std::size_t>(rank)]->write_line("leave");
  for (const int rank : {0, 1, 3}) CHECK(members.all[static_cast<std::size_t>(rank)]->wait() == 0);
}

TEST_CASE("process_group: after a death a collective fails at once, and says what to do") {
  captured_log log;
  ferry_test::cluster workers(2, {.graceful = false});
  process_group left;
  process_group other;
  workers.each([&](ferry::worker& self) { (self.id().value == 0 ? left : other) = process_group(self); });
  other = {};
  workers[1].shutdown(false);
  // The first may still be under way when the news comes.
  ending end = end_of(left.barrier(ferry::no_timeout));
  CHECK_MESSAGE(has(end, "worker1"), end.text);
  while (left.lost().empty()) std::this_thread::yield();
  end = end_of(left.barrier(ferry::no_timeout));
  CHECK(end.kind == errc::peer_lost);
  CHECK_MESSAGE(has(end, "shrink()"), end.text);
  const process_group alone = left.shrink();
  CHECK(alone.size() == 1);
  alone.barrier().get();
}

TEST_CASE("process_group: a member that dropped its handles is named to those that wait for it") {
  run_cluster(2, [](ferry::worker& self) {
    process_group group(self, ferry::all_workers, {.name = "short"});
    if (self.id().value == 0) group = {};
    self.barrier();
    if (self.id().value == 1) {
      const ending end = end_of(group.barrier(ferry::no_timeout));
      CHECK_MESSAGE(has(end, "worker0: "), end.text);
      CHECK_MESSAGE(has(end, "does not have the process_group any more"), end.text);
    }
    self.barrier();
  });
}
