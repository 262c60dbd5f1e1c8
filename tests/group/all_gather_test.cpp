#include <ferry/group/all_gather.hpp>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/types/map.hpp>
#include <cereal/types/memory.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "group/gather_rounds.hpp"

namespace all_gather_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;
using ferry_test::run_cluster;
using ferry_test::run_together;
using ferry_test::worker_name;

// A value that is slow to serialise.
struct slow {
  std::chrono::milliseconds pause{};
  template <class Archive>
  void save(Archive& archive) const {
    std::this_thread::sleep_for(pause);
    archive(static_cast<std::int32_t>(pause.count()));
  }
  template <class Archive>
  void load(Archive& archive) {
    std::int32_t count = 0;
    archive(count);
    pause = std::chrono::milliseconds(count);
  }
};

// Runs as a handler: gathers one number from a handler of each worker.
std::map<std::string, int> gather_inside(int number) { return ferry::all_gather(number); }
int gather_with(const std::vector<std::string>& names) {
  return static_cast<int>(ferry::all_gather(1, names, 100s).size());
}
int plus_one(int value) { return value + 1; }

TEST_CASE("all_gather returns the values of all members by name, for all workers and for subsets") {
  run_cluster(4, [](ferry::worker& self) {
    const int rank = self.id().value;
    for (int round = 0; round != 20; ++round) {
      const auto numbers = self.all_gather(rank + 100 * round);
      REQUIRE(numbers.size() == 4);
      int expected = 0;
      for (const auto& [name, number] : numbers) {
        CHECK(name == worker_name(expected));
        CHECK(number == expected++ + 100 * round);
      }
    }
    const std::map<std::string, std::string> names = self.all_gather(self.name() + "!");
    CHECK(names.at("worker2") == "worker2!");
    CHECK(self.all_gather("literal").at("worker3") == "literal");

    const std::vector<std::string> half{worker_name(rank % 2 + 2), worker_name(rank % 2)};  // in any order
    const auto halves = self.all_gather(std::vector<int>{rank, rank}, half);
    CHECK(halves.size() == 2);
    CHECK(halves.at(worker_name(rank % 2 + 2)) == std::vector<int>{rank % 2 + 2, rank % 2 + 2});
    CHECK(!halves.contains(worker_name((rank + 1) % 2)));
    expect_error(errc::unknown_worker, "'worker9'", [&] { (void)halves.at("worker9"); });
    CHECK(self.all_gather(rank, {self.name()}).at(self.name()) == rank);
  });
}

TEST_CASE("values that can only be moved, and tensors, are gathered; nothing is shared") {
  run_cluster(3, [](ferry::worker& self) {
    const int rank = self.id().value;
    auto pointers = self.all_gather(std::make_unique<int>(rank));
    std::map<std::string, std::unique_ptr<int>> moved = std::move(pointers);
    CHECK(*moved.at("worker2") == 2);

    ferry::tensor own = ferry::full({64, 64}, static_cast<float>(rank));
    auto tensors = self.all_gather(own.transpose(0, 1));
    own.data<float>()[0] = -1;  // may be written again after all_gather has returned
    for (int other = 0; other != 3; ++other) {
      const ferry::tensor& t = tensors.at(worker_name(other));
      CHECK(t.data<float>()[0] == static_cast<float>(other));
      t.data<float>()[0] = 7;  // not shared with another worker
    }
    self.barrier();
    CHECK(own.data<float>()[0] == -1);
  });
}

TEST_CASE("sets whose concatenated names are equal are not confused") {
  cluster group(4, {.configure = [](ferry::worker_config& config) {
                  const char* names[] = {"a", "ab", "b", "aab"};
                  config.name = names[config.rank];
                }});
  // The names of {a, ab} and {aab} are the same text when concatenated without separators.
  run_together({[&] {
                  CHECK(group[0].all_gather(1, {"a", "ab"}).size() == 2);
                },
                [&] {
                  CHECK(group[1].all_gather(2, {"a", "ab"}).at("a") == 1);
                },
                [&] { CHECK(group[3].all_gather(3, {"aab"}).at("aab") == 3); },
                [&] {
                  CHECK(group[0].all_gather(4, {"a", "b"}).at("b") == 5);
                },
                [&] {
                  CHECK(group[2].all_gather(5, {"b", "a"}).at("a") == 4);
                }});
}

TEST_CASE("all_gather in handlers frees its slot: num_worker_threads = 1 is enough") {
  cluster group(3, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  std::vector<ferry::future<std::map<std::string, int>>> calls;
  for (int rank = 0; rank != 3; ++rank) calls.push_back(group[0].rpc_async<gather_inside>(rank, rank * rank));
  for (auto& call : calls) {
    CHECK(call.get() == std::map<std::string, int>{{"worker0", 0}, {"worker1", 1}, {"worker2", 4}});
  }
  group.each([](ferry::worker& self) {
    // Members that gather wait in handlers of the collecting workers, which still serve other calls.
    std::vector<ferry::future<int>> plain;
    for (int rank = 0; rank != 3; ++rank) plain.push_back(self.rpc_async<plus_one>(rank, rank));
    for (int rank = 0; rank != 3; ++rank) CHECK(plain[static_cast<std::size_t>(rank)].get() == rank + 1);
  });
}

TEST_CASE("a worker with a list of served methods takes part in all_gather") {
  run_cluster(3, [](ferry::worker& self) { CHECK(self.all_gather(self.id().value).at("worker1") == 1); },
              {.configure = [](ferry::worker_config& config) { config.serve = ferry::serve_list<plus_one>; }});
}

TEST_CASE("[row 144] all_gather times out after the worker's default timeout, and the error states the duration") {
  captured_log log;
  cluster group(3);
  group.each([](ferry::worker& self) {
    self.set_rpc_timeout(100ms);
    expect_error(errc::rpc_timeout, "timed out in all_gather after 0.10 seconds",
                 [&] { (void)self.all_gather(slow{500ms}); });
    self.set_rpc_timeout(100s);
    CHECK(self.all_gather(slow{1ms}).size() == 3);
  });
}

TEST_CASE("a missing member is named in the timeout of all others; the next gather succeeds") {
  captured_log log;
  cluster group(3);
  group.each([](ferry::worker& self) { self.barrier(); });
  const auto rounds = ferry::detail::gather_rounds::of(*group[0].core());
  for (const int absent : {0, 2}) {
    const std::string name = worker_name(absent);
    CAPTURE(name);
    const auto gather = [&](int rank, ferry::timeout limit) {
      expect_error(errc::rpc_timeout, "after 1.50 seconds (the limit of worker1); missing: " + name,
                   [&] { (void)group[rank].all_gather(rank, ferry::all_workers, limit); });
    };
    // One member has a short limit; its expiry ends the round for the other one, too.
    std::jthread waiting(gather, 2 - absent, 100s);
    while (rounds->waiting_members() != 1) std::this_thread::yield();
    gather(1, 1500ms);
    waiting.join();
    // The absent member calls late: it fails at once, and its next calls join the same rounds as the others.
    expect_error(errc::group_mismatch, "has ended without it",
                 [&] { (void)group[absent].all_gather(absent, ferry::all_workers, 100s); });
    group.each([&](ferry::worker& self) {
      for (int i = 0; i != 3; ++i) CHECK(self.all_gather(i, ferry::all_workers, 100s).at(name) == i);
    });
  }
}

TEST_CASE("a member whose first gather is late joins the next round of the others") {
  captured_log log;
  cluster group(2);
  for (int i = 0; i != 3; ++i) {
    expect_error(errc::rpc_timeout, "missing: worker1",
                 [&] { (void)group[0].all_gather(1, ferry::all_workers, 300ms); });
  }
  run_together({[&] { CHECK(group[0].all_gather(2, ferry::all_workers, 100s).at("worker1") == 3); },
                [&] { CHECK(group[1].all_gather(3, ferry::all_workers, 100s).at("worker0") == 2); }});
  run_together({[&] { CHECK(group[0].all_gather(4, ferry::all_workers, 100s).at("worker1") == 5); },
                [&] { CHECK(group[1].all_gather(5, ferry::all_workers, 100s).at("worker0") == 4); }});
}

TEST_CASE("all_gather in a handler ends with the handler's deadline") {
  captured_log log;
  cluster group(2);
  const std::vector<std::string> both{"worker0", "worker1"};
  expect_error(errc::rpc_timeout, "", [&] {
    (void)group[0].rpc_sync<gather_with>({"worker1", {.timeout = 100ms}}, both);
  });
  // Wait until it has ended at both workers: the handler, and its call to the collecting worker.
  const auto end_of_calls = [&](int from, int to) {
    CHECK(group[from].rpc_sync<plus_one>(worker_name(to), 1) == 2);
    while (!group[to].served_calls().empty()) std::this_thread::yield();
  };
  end_of_calls(0, 1);
  end_of_calls(1, 0);
  const auto rounds = ferry::detail::gather_rounds::of(*group[0].core());
  while (rounds->waiting_members() != 0) std::this_thread::yield();
  // No state of it remains: worker0 gathers with worker1 again.
  run_together({[&] { CHECK(group[0].all_gather(1, both, 100s).size() == 2); },
                [&] { CHECK(group[1].all_gather(1, both, 100s).size() == 2); }});
}

TEST_CASE("members that gather different types get group_mismatch") {
  captured_log log;
  cluster group(3);
  group.each([](ferry::worker& self) {
    expect_error(errc::group_mismatch, "gather different types", [&] {
      if (self.id().value == 1) {
        (void)self.all_gather(1.5, ferry::all_workers, 100s);
      } else {
        (void)self.all_gather(1, ferry::all_workers, 100s);
      }
    });
  });
}

TEST_CASE("invalid sets are rejected") {
  cluster group(2);
  expect_error(errc::unknown_worker, "worker7", [&] { (void)group[0].all_gather(1, {"worker0", "worker7"}); });
  expect_error(errc::invalid_argument, "worker1 is named twice", [&] {
    (void)group[0].all_gather(1, {"worker1", "worker0", "worker1"});
  });
  expect_error(errc::invalid_argument, "not one of them", [&] { (void)group[0].all_gather(1, {"worker1"}); });
  expect_error(errc::invalid_argument, "not one of them",
               [&] { (void)group[0].all_gather(1, std::vector<std::string>{}); });
}

TEST_CASE("a member that shuts down while it waits ends the wait of the others") {
  captured_log log;
  for (const int leaving : {0, 2}) {
    CAPTURE(leaving);
    cluster group(3, {.graceful = false});
    const std::string name = worker_name(leaving);
    std::atomic<int> ended{0};
    std::vector<std::jthread> waiting;
    // worker1 never calls all_gather; worker0 and worker2 wait, and one of them shuts down.
    for (const int rank : {0, 2}) {
      waiting.emplace_back([&, rank] {
        try {
          (void)group[rank].all_gather(rank, ferry::all_workers, ferry::no_timeout);
          FAIL_CHECK("gathered without worker1");
        } catch (const ferry::error& problem) {
          CHECK(problem.kind() == (rank == leaving ? errc::shutting_down : errc::peer_lost));
          CHECK(std::string(problem.what()).find(rank == leaving ? "all_gather" : name) != std::string::npos);
        }
        ++ended;
      });
    }
    const auto rounds = ferry::detail::gather_rounds::of(*group[0].core());
    while (rounds->waiting_members() != 2) std::this_thread::yield();
    group[leaving].shutdown(false);
    waiting.clear();
    CHECK(ended == 2);
  }
}

}  // namespace all_gather_test
