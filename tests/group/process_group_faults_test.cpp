// How collectives end that cannot succeed: on every member, with one text that names a culprit.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "group/collective_purpose.hpp"
#include "group/group_core.hpp"
#include "processes.hpp"

namespace process_group_faults_test {

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

TEST_CASE(
    "process_group: a limit that passes ends the collective on every member and names those that have not called it") {
  run_cluster(4, [](ferry::worker& self) {
    const process_group group(self);
    const tensor t = ferry::ones({4});
    const int rank = self.id().value;
    if (rank != 2) {
      ferry::future<void> begun;
      if (rank != 0) begun = group.all_reduce(t, reduce_op::sum, ferry::no_timeout);
      self.barrier({"worker0", "worker1", "worker3"});  // the limit begins when all but one have called it
      if (rank == 0) begun = group.all_reduce(t, reduce_op::sum, 250ms);
      const ending end = end_of(std::move(begun));
      CHECK(end.kind == errc::rpc_timeout);
      CHECK_MESSAGE(has(end, "all_reduce(sum) of f32 [4], collective 0 of group 'group'"), end.text);
      CHECK_MESSAGE(has(end, "timed out after 0.25 seconds, the limit of worker0; not called by worker2"), end.text);
    }
    self.barrier();
    if (rank == 2) {  // comes late: gets the same, at once
      const ending end = end_of(group.all_reduce(t, reduce_op::sum, ferry::no_timeout));
      CHECK(end.kind == errc::rpc_timeout);
      CHECK_MESSAGE(has(end, "not called by worker2"), end.text);
    }
    group.all_reduce(t.fill_(1)).get();  // the group goes on
    CHECK(t.at<float>(0) == 4);
  });
}

TEST_CASE("process_group: cancelling a future ends the collective on every member, when its tensors are free") {
  for (const std::size_t shared_bytes : {std::size_t{0}, std::size_t{1} << 20U}) {
    run_cluster(3, [&](ferry::worker& self) {
      const process_group group(self, ferry::all_workers, {.shared_bytes = shared_bytes});
      const int rank = self.id().value;
      for (const std::int64_t count : {std::int64_t{10}, std::int64_t{100'000}}) {
        const tensor t = ferry::full({count}, rank + 1, ferry::dtype::f32);
        ferry::future<void> begun;
        if (rank != 2) begun = group.all_reduce(t);
        self.barrier();
        if (rank == 0) begun.cancel();
        ending end;
        if (rank != 2) end = end_of(begun);
        if (rank == 0) t.fill_(-7);  // it is the caller's again
        self.barrier();
        if (rank == 2) end = end_of(group.all_reduce(t));
        // The one that comes last has what the others had sent, which may be all it needs, before it hears of the end.
        if (rank != 2 || !end.text.empty()) {
          CHECK(end.kind == errc::call_cancelled);
          CHECK_MESSAGE(has(end, "all_reduce(sum) of f32"), end.text);
          CHECK_MESSAGE(has(end, "worker0 has cancelled it"), end.text);
        } else {
          CHECK(t.at<float>(0) == 6);
          CHECK(t.at<float>(count - 1) == 6);
        }
        // The members are in step.
        const tensor next = ferry::full({count}, rank + 1, ferry::dtype::f32);
        group.all_reduce(next).get();
        CHECK(next.at<float>(0) == 6);
        CHECK(next.at<float>(count - 1) == 6);
        if (rank == 0) {
          CHECK(t.at<float>(0) == -7);
          CHECK(t.at<float>(count - 1) == -7);
        }
        const ferry::future<tensor> result = group.all_gather(t);
        result.wait();
        result.cancel();  // too late
        CHECK(result.get().numel() == 3 * count);
      }
    });
  }
}

TEST_CASE("process_group: a failure that other members tell is told once in the text") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, {.shared_bytes = 0});
    for (int round = 0; round != 20; ++round) {
      const tensor t = self.id().value == 2 ? ferry::ones({2, 2}) : ferry::ones({4});
      const ending end = end_of(group.all_reduce(t));
      CHECK(end.kind == errc::group_mismatch);
      const std::size_t first = end.text.find(", collective");
      CHECK_MESSAGE(first != std::string::npos, end.text);
      CHECK_MESSAGE(end.text.find(", collective", first + 1) == std::string::npos, end.text);
    }
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
    const int rank = group.rank();
    const tensor t = ferry::ones({4});
    ferry::future<void> begun;
    if (rank != 0) begun = group.reduce(t, rank == 1 ? 1 : 0, reduce_op::sum, ferry::no_timeout);
    self.barrier();
    if (rank == 0) begun = group.reduce(t, 0, reduce_op::sum, 250ms);
    const ending end = end_of(std::move(begun));
    if (rank != 2) {  // it has sent its part, and may be done
      CHECK(end.kind == errc::group_mismatch);
      CHECK_MESSAGE(has(end, "with root 1"), end.text);
      CHECK_MESSAGE(has(end, "with root 0"), end.text);
    }
    self.barrier();
    group.barrier().get();
  });
}

TEST_CASE("process_group: collectives that are for different things end with a mismatch, those for the same succeed") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    const tensor t = ferry::ones({3});
    for (const bool differ : {true, false}) {
      const auto pass = static_cast<std::uint64_t>(differ ? group.rank() : 7);
      const ferry::context_values_scope scope(
          ferry::detail::values_with_note({ferry::detail::bucket_purpose{1, pass, 2}.number(), {}}));
      const ending end = end_of(group.all_reduce(t));
      if (!differ) {
        CHECK_MESSAGE(end.text.empty(), end.text);
        continue;
      }
      CHECK(end.kind == errc::group_mismatch);
      CHECK_MESSAGE(end.text.find("bucket 2 of pass 1") != std::string::npos, end.text);
    }
  });
}

TEST_CASE("process_group: what a member refuses ends on every member, in continuations, too, and the group goes on") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self);
    const tensor t = ferry::ones({3});
    const tensor u = ferry::ones({3});  // the other one is written meanwhile
    std::vector<ferry::future<void>> pending;
    pending.push_back(group.all_reduce(t));
    {
      const ferry::context_values_scope scope(
          ferry::detail::values_with_note({0, group.rank() == 1 ? "worker1 cannot go on" : ""}));
      pending.push_back(group.barrier());
      pending.push_back(group.all_gather(u).then([](const tensor&) {}));
    }
    pending.push_back(group.barrier());
    CHECK(end_of(pending[0]).text.empty());
    for (const std::size_t each : {1, 2}) {
      const ending end = end_of(pending[each]);
      CHECK(end.kind == errc::remote_exception);
      CHECK_MESSAGE(end.text.find("worker1 cannot go on") != std::string::npos, end.text);
    }
    CHECK(end_of(pending[3]).text.empty());
  });
}

TEST_CASE("process_group: a mismatch of send and receive ends it at both ends") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    const ending end =
        group.rank() == 0 ? end_of(group.send(ferry::ones({3}), 1)) : end_of(group.receive(ferry::ones({4}), 0));
    CHECK(end.kind == errc::group_mismatch);
    CHECK_MESSAGE(has(end, "from worker0 to worker1"), end.text);
    CHECK_MESSAGE(has(end, "send of f32 [3]"), end.text);
    CHECK_MESSAGE(has(end, "receive of f32 [4]"), end.text);
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
        const int waits = (odd + 1) % 3;
        ferry::future<void> begun;
        if (group.rank() == (odd + 2) % 3) begun = group.all_reduce(t, reduce_op::sum, ferry::no_timeout);
        self.barrier();
        if (group.rank() == waits) begun = group.all_reduce(t, reduce_op::sum, 50ms);
        if (group.rank() != odd) {
          const ending end = end_of(std::move(begun));
          CHECK(end.kind == errc::rpc_timeout);
          CHECK_MESSAGE(has(end, "not called by " + worker_name(odd)), end.text);
        }
        self.barrier();
        if (group.rank() == odd) {
          CHECK(end_of(group.all_reduce(t, reduce_op::sum, ferry::no_timeout)).kind == errc::rpc_timeout);
        }
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

TEST_CASE("process_group: a member that drops its handles when a collective fails has told the others why it failed") {
  run_cluster(2, [](ferry::worker& self) {
    for (int round = 0; round != 40; ++round) {
      process_group group(self, ferry::all_workers, {.name = "short"});
      const ending end = end_of(group.all_reduce(ferry::zeros({1 + group.rank()})));
      group = {};
      CHECK_MESSAGE(end.kind == errc::group_mismatch, end.text);
      self.barrier();
    }
  });
}

// As sent by a member that has not heard of the end yet.
TEST_CASE(
    "process_group: a message of a collective that has failed is told so by a member that has no handle any more") {
  run_cluster(2, [](ferry::worker& self) {
    process_group group(self, ferry::all_workers, {.name = "gone"});
    CHECK(end_of(group.all_reduce(ferry::zeros({1 + group.rank()}))).kind == errc::group_mismatch);
    if (group.rank() == 0) {
      const std::weak_ptr<ferry::detail::group_core> watched = group.core();
      group = {};
      while (!watched.expired()) std::this_thread::yield();
    }
    self.barrier();
    if (self.id().value == 1) {
      ferry::detail::group_message message;
      message.group = group.core()->facts().id;
      message.from = 1;
      const auto answer = [&] { return end_of(group.core()->send(message, 0, ferry::empty({0}, ferry::dtype::u8))); };
      message.key = {ferry::detail::collective_key::all, 0};
      ending end = answer();
      CHECK(end.kind == errc::group_mismatch);
      CHECK_MESSAGE(has(end, "collective 0 of group 'gone': "), end.text);
      message.key.sequence = 1;
      end = answer();
      CHECK(end.kind == errc::invalid_argument);
      CHECK_MESSAGE(has(end, "does not have the process_group any more"), end.text);
    }
    self.barrier();
  });
}

TEST_CASE("process_group: nothing holds the tensors of a collective that has failed, messages on their way neither") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers,
                              {.chunk = 4096, .plan = {{.op = collective::all_reduce, .use = algorithm::ring}}});
    if (group.rank() == 0) {
      for (int round = 0; round != 10; ++round) {
        auto memory = std::make_shared<std::vector<float>>(std::size_t{1} << 20U, 1.0F);
        const std::weak_ptr<std::vector<float>> watched = memory;
        tensor t = ferry::from_blob(memory->data(), {1 << 20}, ferry::dtype::f32, memory);
        memory.reset();
        const ending end = end_of(group.all_reduce(t, reduce_op::sum, 20ms));  // the other one does not come
        CHECK(end.kind == errc::rpc_timeout);
        t = tensor();
        CHECK(watched.expired());
      }
    }
    self.barrier();
    if (group.rank() == 1) {
      for (int round = 0; round != 10; ++round) {
        CHECK(end_of(group.all_reduce(ferry::ones({1 << 20}), reduce_op::sum, ferry::no_timeout)).kind ==
              errc::rpc_timeout);
      }
    }
    group.barrier().get();
  });
}

TEST_CASE("process_group: collectives with tensors under way when the worker shuts down end, and let go of them") {
  ferry_test::cluster workers(2, {.graceful = false});
  process_group first;
  process_group second;
  workers.each([&](ferry::worker& self) {
    (self.id().value == 0 ? first : second) = process_group(
        self, ferry::all_workers, {.chunk = 4096, .plan = {{.op = collective::all_reduce, .use = algorithm::ring}}});
  });
  auto memory = std::make_shared<std::vector<float>>(std::size_t{1} << 20U, 1.0F);
  const std::weak_ptr<std::vector<float>> watched = memory;
  tensor t = ferry::from_blob(memory->data(), {1 << 20}, ferry::dtype::f32, memory);
  memory.reset();
  auto pending = first.all_reduce(t, reduce_op::sum, ferry::no_timeout);
  workers.shutdown(false);
  CHECK_THROWS_AS(pending.get(), ferry::error);
  t = tensor();
  CHECK(watched.expired());
}

// A message of worker1 as a faulty version of this library may send it. Taken as if it had come.
ferry::future<void> forge(const process_group& at, std::uint64_t sequence, std::uint32_t piece, std::uint32_t tag) {
  ferry::detail::group_message message;
  message.group = at.core()->facts().id;
  message.from = 1;
  message.key = {ferry::detail::collective_key::all, sequence};
  message.piece = piece;
  message.tag = tag;
  message.signature.op = collective::barrier;
  message.signature.use = algorithm::dissemination;
  return at.core()->deliver(message, ferry::empty({0}, ferry::dtype::u8));
}

TEST_CASE("process_group: messages that no member sends end their collective, and name their sender") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self);
    const auto expect = [&](ferry::future<void> barrier, ferry::future<void> forged, std::string_view text) {
      for (const ending& end : {end_of(std::move(barrier)), end_of(std::move(forged))}) {
        CHECK(end.kind == errc::malformed);
        CHECK_MESSAGE(has(end, text), end.text);
      }
    };
    if (group.rank() == 0) {
      auto barrier = group.barrier(ferry::no_timeout);
      expect(std::move(barrier), forge(group, 0, 0, 99),
             "worker1 has sent message 99 of piece 0 of 1, which is not in its part");
      barrier = group.barrier(ferry::no_timeout);
      expect(std::move(barrier), forge(group, 1, 7, 1),
             "worker1 has sent message 1 of piece 7 of 1, which is not in its part");
      // Among three, the second message of a barrier comes from worker1, and the first from worker2: it waits in the lane.
      barrier = group.barrier(ferry::no_timeout);
      forge(group, 2, 0, 1).get();
      expect(std::move(barrier), forge(group, 2, 0, 1), "worker1 has sent message 1 of piece 0 of 1, twice");
      const auto early = forge(group, 3, 0, 1);
      auto again = forge(group, 3, 0, 1);
      expect(group.barrier(ferry::no_timeout), std::move(again), "worker1 has sent message 1 of piece 0 of 1, twice");
      CHECK(early.failed());
    }
    self.barrier();
    if (group.rank() != 0) {
      // worker0 had come to them: a member to which all messages have come before it hears of the error would be through.
      for (std::uint64_t i = 0; i != 4; ++i) {
        while (!group.core()->knows_end_of({ferry::detail::collective_key::all, i})) std::this_thread::yield();
      }
      for (int i = 0; i != 4; ++i) {
        const ending end = end_of(group.barrier(ferry::no_timeout));
        CHECK(end.kind == errc::malformed);
        CHECK_MESSAGE(has(end, "worker1 has sent"), end.text);
      }
    }
    group.barrier().get();  // the group goes on
  });
}

TEST_CASE("process_group: what a member keeps of collectives that it has not begun is bounded for each other member") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    if (group.rank() == 0) {
      group.core()->set_most_early(8);
      std::vector<ferry::future<void>> kept;
      for (std::uint64_t i = 0; i != 8; ++i) kept.push_back(forge(group, 100 + i, 0, 0));
      const ending end = end_of(forge(group, 200, 0, 0));
      CHECK(end.kind == errc::limit_exceeded);
      CHECK_MESSAGE(has(end, "worker1 has sent 8 messages of collectives that worker0 has not begun"), end.text);

      ferry::detail::group_abort abort;
      abort.group = group.core()->facts().id;
      abort.from = 1;
      abort.error = static_cast<std::uint32_t>(errc::injected_failure);
      abort.text = std::string(1 << 20, 'x');
      abort.key = {7, 0};
      expect_error(errc::invalid_argument, "worker1 ends what is not for this member",
                   [&] { group.core()->on_abort(abort); });
      for (std::uint64_t i = 0; i != 4096; ++i) {
        abort.key = {ferry::detail::collective_key::all, 100 + i};
        group.core()->on_abort(abort);
      }
      for (const auto& each : kept) CHECK(each.failed());
      abort.key.sequence = 9999;
      expect_error(errc::limit_exceeded, "worker1 has ended 4096 collectives that worker0 has not begun",
                   [&] { group.core()->on_abort(abort); });
      const auto room = forge(group, 8888, 0, 0);  // for messages again
      CHECK_FALSE(room.ready());
    }
    self.barrier();
    group.barrier().get();
  });
}

TEST_CASE("process_group: any window and any chunk do, apart from more pieces than have a number") {
  run_cluster(2, [](ferry::worker& self) {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    const process_group group(self, ferry::all_workers, {.chunk = most, .window = most});
    const tensor t = ferry::ones({1000}, ferry::dtype::u8);
    group.all_reduce(t).get();
    CHECK(t.at<std::uint8_t>(999) == 2);
    CHECK(group.plan(collective::all_reduce, 1000).pieces == 1);
    CHECK(group.plan(collective::all_gather, most).pieces >= 1);
    for (const ferry::group_options& none : {ferry::group_options{.chunk = 0}, ferry::group_options{.window = 0}})
      expect_error(errc::invalid_argument, "is 0",
                   [&] { const process_group refused(self, ferry::all_workers, none); });
    const process_group tiny(self, ferry::all_workers, {.chunk = 1, .window = 1});
    tiny.all_reduce(t).get();
    CHECK(t.at<std::uint8_t>(999) == 4);
    std::uint8_t byte = 0;  // is not read
    const tensor huge = ferry::from_blob(&byte, {std::int64_t{1} << 33U}, ferry::dtype::u8);
    expect_error(errc::invalid_argument, "group_options::chunk is too small", [&] { (void)tiny.broadcast(huge, 0); });
    tiny.barrier().get();
  });
}

}  // namespace process_group_faults_test
