// What workers show of the collectives that have not ended.

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/tensor/factories.hpp>

#include "cluster.hpp"
#include "group/group_core.hpp"
#include "rpc/diagnostics/snapshot_archive.hpp"
#include "rpc/worker/worker_core.hpp"

namespace pending_collectives_test {

using namespace std::chrono_literals;
using ferry::pending_collective_info;
using ferry::process_group;
using ferry_test::cluster;

using names = std::vector<std::string>;

std::vector<process_group> groups_of(cluster& workers) {
  std::vector<process_group> made(static_cast<std::size_t>(workers.size()));
  workers.each([&](ferry::worker& self) {
    made[static_cast<std::size_t>(self.id().value)] =
        process_group(self, ferry::all_workers, {.name = "trainers", .limit = 60s});
  });
  return made;
}

// As a tool would get it.
ferry::worker_snapshot snapshot_of(const ferry::worker& of) {
  const ferry::byte_buffer bytes = ferry::detail::encode_snapshot(of.core()->snapshot("test", false));
  return ferry::detail::decode_snapshot(bytes.bytes(), of.core()->limits());
}

TEST_CASE("a worker shows the collectives that it has begun, until they have ended") {
  cluster workers(3);
  std::vector<process_group> groups = groups_of(workers);
  for (const auto& each : groups) CHECK(each.core()->next_number() == 0);
  CHECK(workers[0].pending_collectives().empty());
  std::vector<ferry::future<void>> ends;
  const auto begin = [&](std::size_t rank) { ends.push_back(groups[rank].all_reduce(ferry::ones({2, 3}))); };
  begin(0);
  begin(1);
  ends.push_back(groups[0].send(ferry::ones({4}), 2, ferry::no_timeout));
  CHECK(workers[2].pending_collectives().empty());
  const auto shown = workers[0].pending_collectives();
  REQUIRE(shown.size() == 2);
  const pending_collective_info& reduced = shown[0];
  CHECK(reduced.operation == "all_reduce(sum) of f32 [2, 3]");
  CHECK(reduced.group == "trainers");
  CHECK(reduced.group_id == groups[1].core()->facts().id);
  CHECK(reduced.number == 0);
  CHECK(reduced.channel == -1);
  CHECK(reduced.members == names{"worker0", "worker1", "worker2"});
  CHECK(reduced.age > 0ns);
  CHECK_FALSE(reduced.until.is_never());
  CHECK(reduced.missing.empty());
  CHECK(to_string(reduced).starts_with("all_reduce(sum) of f32 [2, 3], collective 0 of group 'trainers': since "));
  const pending_collective_info& sent = shown[1];
  CHECK(sent.channel == 2);
  CHECK(sent.operation == "send of f32 [4] to worker2");
  CHECK(to_string(sent).starts_with("send of f32 [4] to worker2, message 0 of group 'trainers': since "));
  CHECK(sent.members == names{"worker0", "worker2"});
  CHECK(sent.until.is_never());
  CHECK(to_string(sent).ends_with(", no deadline"));
  const ferry::worker_snapshot now = snapshot_of(workers[0]);
  REQUIRE(now.pending_collectives.size() == 2);
  CHECK(now.pending_collectives[0].members.empty());
  CHECK(now.pending_collectives[1].members == sent.members);
  REQUIRE(now.groups.size() == 1);
  CHECK(now.groups[0].members == reduced.members);
  CHECK(now.groups[0].begun == 1);
  CHECK(snapshot_of(workers[2]).groups.at(0).begun == 0);
  const std::string record = workers[0].flight_record();
  CHECK(record.find(R"("pending_collectives": [)") != std::string::npos);
  CHECK(record.find(R"("operation": "all_reduce(sum) of f32 [2, 3]", "group": "trainers",)") != std::string::npos);
  ends.push_back(groups[2].receive(ferry::ones({4}), 1));
  REQUIRE(workers[2].pending_collectives().size() == 1);
  CHECK(workers[2].pending_collectives()[0].operation == "receive of f32 [4] from worker1");
  ends.push_back(groups[1].send(ferry::ones({4}), 2));
  begin(2);
  ends.push_back(groups[2].receive(ferry::ones({4}), 0));
  for (const auto& each : ends) each.get();
  for (int rank = 0; rank != 3; ++rank) CHECK(workers[rank].pending_collectives().empty());
  groups.clear();
  // What the group had to do for the last collective may keep it a moment longer than its handles.
  while (!snapshot_of(workers[0]).groups.empty()) std::this_thread::yield();
}

TEST_CASE("the worker that collects shows which members a barrier waits for") {
  cluster workers(3);
  std::thread other([&] { workers[1].barrier(ferry::all_workers, 60s); });
  std::vector<pending_collective_info> shown;
  while ((shown = workers[0].pending_collectives()).empty()) std::this_thread::yield();
  REQUIRE(shown.size() == 1);
  CHECK(shown[0].operation == "barrier");
  CHECK(shown[0].group_id == 0);
  CHECK(shown[0].members == names{"worker0", "worker1", "worker2"});
  CHECK(shown[0].missing == names{"worker0", "worker2"});
  CHECK_FALSE(shown[0].until.is_never());
  CHECK(to_string(shown[0]).starts_with("barrier of worker0, worker1, worker2: since "));
  CHECK(to_string(shown[0]).ends_with("; not called by worker0, worker2"));
  CHECK(workers[1].pending_collectives().empty());
  ferry_test::run_together({[&] { workers[0].barrier(); }, [&] { workers[2].barrier(); }});
  other.join();
  CHECK(workers[0].pending_collectives().empty());
}

TEST_CASE("a worker that has made no group, and one that has been shut down, show no collectives") {
  cluster workers(2);
  CHECK(snapshot_of(workers[0]).groups.empty());
  std::vector<process_group> groups = groups_of(workers);
  workers.shutdown();
  CHECK(workers[0].pending_collectives().empty());
}

}  // namespace pending_collectives_test
