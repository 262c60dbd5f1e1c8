// Collectives in memory that the members share: with workers that reach each other by shm.

#include <ferry/group/process_group.hpp>

#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "processes.hpp"
#include "sanitizers.hpp"
#include "stores_until_death.hpp"

namespace shared_group_test {

using namespace std::chrono_literals;
using ferry::algorithm;
using ferry::collective;
using ferry::errc;
using ferry::process_group;
using ferry::reduce_op;
using ferry::tensor;
using ferry_test::child_process;
using ferry_test::stores_until_death;
using ferry_test::worker_name;

void run_shared(int size, const std::function<void(ferry::worker&)>& body) {
  ferry_test::run_cluster(size, body, {.configure = [](ferry::worker_config& config) { config.transports = {"shm"}; }});
}

std::string end_of(ferry::future<void> pending) {
  try {
    pending.get();
  } catch (const ferry::error& problem) {
    return std::string(problem.message());
  }
  return {};
}
bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Sums of it are exact.
double value_of(int rank, std::int64_t round, std::int64_t index) {
  return static_cast<double>((rank * 31 + round * 17 + index * 7) % 1001);
}
tensor values_of(int rank, std::int64_t round, std::int64_t count) {
  std::vector<double> made(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i != count; ++i) made[static_cast<std::size_t>(i)] = value_of(rank, round, i);
  return ferry::from_vector(made);
}
double sum_of(int n, std::int64_t round, std::int64_t index) {
  double sum = 0;
  for (int each = 0; each != n; ++each) sum += value_of(each, round, index);
  return sum;
}
template <class F>
bool all_are(const tensor& t, F&& expected) {
  for (std::int64_t i = 0; i != t.numel(); ++i) {
    if (t.data<double>()[i] != expected(i)) return false;
  }
  return true;
}

// Each operation, on tensors of `count` elements for each member.
void every_operation(const process_group& group, std::int64_t round, std::int64_t count) {
  const int n = group.size();
  const int rank = group.rank();
  const auto sum = [&](std::int64_t i) { return sum_of(n, round, i); };
  tensor t = values_of(rank, round, count * n);
  group.all_reduce(t).get();
  CHECK(all_are(t, sum));
  t = values_of(rank, round, count * n);
  const int root = static_cast<int>(round % n);
  group.broadcast(t, root).get();
  CHECK(all_are(t, [&](std::int64_t i) { return value_of(root, round, i); }));
  t = values_of(rank, round, count * n);
  group.reduce(t, root, reduce_op::max).get();
  CHECK(all_are(t, [&](std::int64_t i) {
    double most = value_of(rank, round, i);
    for (int each = 0; rank == root && each != n; ++each) most = std::max(most, value_of(each, round, i));
    return most;
  }));
  t = values_of(rank, round, count * n);
  CHECK(all_are(group.all_gather(t).get().view({count * n * n}),
                [&](std::int64_t i) { return value_of(static_cast<int>(i / (count * n)), round, i % (count * n)); }));
  CHECK(all_are(group.reduce_scatter(t).get(), [&](std::int64_t i) { return sum(rank * count + i); }));
  CHECK(all_are(group.all_to_all(t).get(), [&](std::int64_t i) {
    return value_of(static_cast<int>(i / count), round, rank * count + i % count);
  }));
  group.barrier().get();
}

// Makes collectives until one fails, and tells how; then as the parent says.
const ferry_test::role member("shared group member", [](const std::vector<std::string>& arguments) {
  const int rank = std::stoi(arguments.at(1));
  ferry::worker self = ferry::init_rpc({.name = worker_name(rank),
                                        .rank = rank,
                                        .world_size = std::stoi(arguments.at(2)),
                                        .init_method = arguments.at(0),
                                        .rpc_timeout = 100s});
  process_group group(self);
  if (group.plan(collective::all_reduce, 1024).use != algorithm::shared) return 1;
  const std::int64_t count = std::stoi(arguments.at(3));
  ferry_test::tell_parent("ready");
  for (std::int64_t round = 0;; ++round) {
    const tensor t = values_of(group.rank(), round, count);
    const std::string end = end_of(group.all_reduce(t, reduce_op::sum, ferry::no_timeout));
    if (!end.empty()) {
      ferry_test::tell_parent(end);
      break;
    }
    const bool right = all_are(t, [&](std::int64_t i) { return sum_of(group.size(), round, i); });
    if (!right) ferry_test::tell_parent("wrong");
    if (round == 3) ferry_test::tell_parent("under way");
  }
  (void)ferry_test::ask_parent();
  group = group.shrink();
  const tensor t = values_of(group.rank(), 5, count);
  group.all_reduce(t).get();
  const bool right = all_are(t, [&](std::int64_t i) { return sum_of(group.size(), 5, i); });
  ferry_test::tell_parent(fmt::format("{} of {}: {}, {}", group.rank(), group.size(), right ? "right" : "wrong",
                                      to_string(group.plan(collective::all_reduce, 1024).use)));
  (void)ferry_test::ask_parent();
  self.shutdown(false);
  return 0;
});

// Whether the results of some collectives are right.
bool small_collectives(const process_group& group) {
  tensor t = values_of(group.rank(), 1, 4);
  group.all_reduce(t).get();
  const bool right = all_are(t, [&](std::int64_t i) { return sum_of(group.size(), 1, i); });
  t = values_of(group.rank(), 2, 4);
  group.broadcast(t, group.size() - 1).get();
  return right && all_are(t, [&](std::int64_t i) { return value_of(group.size() - 1, 2, i); });
}

ferry::worker one_of_two(const std::string& meeting, int rank) {
  return ferry::init_rpc(
      {.name = worker_name(rank), .rank = rank, .world_size = 2, .init_method = meeting, .transports = {"shm"}});
}

const ferry_test::role short_lived("shared group member that ends at a store",
                                   [](const std::vector<std::string>& arguments) {
                                     ferry::worker self = one_of_two(arguments.at(0), 1);
                                     process_group group(self);
                                     if (group.plan(collective::all_reduce, 1024).use != algorithm::shared) return 1;
                                     using moment = stores_until_death::moment;
                                     stores_until_death::watch(
                                         ferry_test::mapped_memory("ferry-group"), std::stol(arguments.at(1)),
                                         arguments.at(2) == "after" ? moment::after : moment::before);
                                     const bool right = small_collectives(group);
                                     ferry_test::tell_parent(std::to_string(stores_until_death::count()));
                                     self.shutdown();
                                     return right ? 0 : 2;
                                   });

TEST_CASE(
    "shared group: members that reach each other by shm share memory, as plan() says, unless they are told not to") {
  run_shared(3, [](ferry::worker& self) {
    const process_group group(self);
    const ferry::group_plan small = group.plan(collective::all_reduce, 1024);
    CHECK(small.use == algorithm::shared);
    CHECK(small.steps == 1);
    CHECK(small.not_shared == "");
    CHECK(group.plan(collective::all_reduce, 1 << 20).steps == 2);
    CHECK(group.plan(collective::barrier, 0).use == algorithm::shared);
    CHECK(group.plan(collective::broadcast, 1 << 20).steps == 1);
    CHECK(group.plan(collective::send, 8).use == algorithm::direct);
    CHECK(has(to_string(small),
              "all_reduce of 1024 bytes among 3: shared, 1 step, 1024 bytes per process, 1 piece in shared memory"));
    const process_group apart(self, ferry::all_workers, {.shared_bytes = 0});
    CHECK(apart.plan(collective::all_reduce, 1024).use == algorithm::exchange);
    CHECK(apart.plan(collective::all_reduce, 1024).not_shared == "group_options::shared_bytes is 0");
    const process_group little(self, ferry::all_workers, {.shared_bytes = 100});
    CHECK(has(little.plan(collective::all_reduce, 1024).not_shared, "are no use"));
    const process_group ruled(self, ferry::all_workers,
                              {.plan = {{.op = collective::all_reduce, .up_to_bytes = 100, .use = algorithm::ring},
                                        {.op = collective::all_reduce, .use = algorithm::shared}}});
    CHECK(ruled.plan(collective::all_reduce, 100).use == algorithm::ring);
    CHECK(ruled.plan(collective::all_reduce, 101).use == algorithm::shared);
    for (const std::int64_t count : {4, 40}) {
      every_operation(ruled, 1, count);
      every_operation(apart, 2, count);
    }
    if (self.id().value == 0) {
      expect_error(errc::group_mismatch, "options",
                   [&] { process_group(self, ferry::all_workers, {.shared_bytes = 1}); });
    } else {
      expect_error(errc::group_mismatch, "options",
                   [&] { process_group(self, ferry::all_workers, {.shared_bytes = 2}); });
    }
  });
  ferry_test::run_cluster(2, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers,
                              {.plan = {{.op = collective::all_reduce, .use = algorithm::shared}}});
    if (group.plan(collective::all_reduce, 8).use != algorithm::shared) {
      CHECK(has(group.plan(collective::all_reduce, 8).not_shared, "by inproc"));
      CHECK(group.plan(collective::all_reduce, 8).use == algorithm::exchange);
    }
    every_operation(group, 3, 10);
  });
}

TEST_CASE("shared group: every operation, in one piece and in many") {
  for (const int n : {2, 3, 4}) {
    run_shared(n, [](ferry::worker& self) {
      for (const std::size_t room : {std::size_t{16} << 10U, std::size_t{2} << 20U}) {
        const process_group group(self, ferry::all_workers, {.shared_bytes = room});
        std::int64_t round = 0;
        for (const std::int64_t count : {1, 3, 100, 4000, 0, 30000}) every_operation(group, ++round, count);
        CHECK(group.plan(collective::barrier, 0).use == algorithm::shared);
      }
    });
  }
}

TEST_CASE("shared group: sums have the bits of an exchange, on every member") {
  run_shared(3, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, {.shared_bytes = 64U << 10U});
    const process_group exchange(self, ferry::all_workers,
                                 {.plan = {{.op = collective::all_reduce, .use = algorithm::exchange}}});
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    for (const std::size_t count : {std::size_t{10}, std::size_t{9000}, std::size_t{100000}}) {
      std::vector<float> own(count);
      for (float& each : own) each = static_cast<float>(random()) / 3e7F;
      for (const reduce_op op : {reduce_op::sum, reduce_op::avg, reduce_op::prod, reduce_op::min}) {
        const tensor a = ferry::from_vector(own);
        const tensor b = ferry::from_vector(own);
        group.all_reduce(a, op).get();
        exchange.all_reduce(b, op).get();
        CHECK(std::memcmp(a.data(), b.data(), a.nbytes()) == 0);
      }
    }
  });
}

TEST_CASE("shared group: many collectives under way at once, large and small, of several groups") {
  run_shared(3, [](ferry::worker& self) {
    const process_group one(self, ferry::all_workers, {.name = "one"});
    const process_group two(self, ferry::all_workers, {.name = "two", .shared_bytes = 16U << 10U});
    const auto busy = [](const process_group& group) {
      std::vector<tensor> tensors;
      std::vector<ferry::future<void>> pending;
      for (std::int64_t i = 0; i != 60; ++i) {
        tensors.push_back(values_of(group.rank(), i, i % 7 == 0 ? 50000 : 50));
        pending.push_back(group.all_reduce(tensors.back()));
        if (i % 9 == 0) pending.push_back(group.barrier());
      }
      for (auto& each : pending) each.get();
      for (std::int64_t i = 0; i != 60; ++i) {
        CHECK(all_are(tensors[static_cast<std::size_t>(i)],
                      [&](std::int64_t at) { return sum_of(group.size(), i, at); }));
      }
    };
    std::thread other([&] { busy(two); });
    busy(one);
    other.join();
  });
}

TEST_CASE("shared group: after a limit, or a mismatch, the others are made by messages, whatever is under way") {
  for (unsigned seed = 0; seed != 12; ++seed) {
    run_shared(3, [&](ferry::worker& self) {
      const process_group group(self, ferry::all_workers, {.shared_bytes = 16U << 10U});
      std::mt19937 random(seed);  // the same on every member
      const int before = static_cast<int>(random() % 4);
      const int odd = static_cast<int>(random() % 3);
      const bool late = random() % 2 == 0;
      const std::int64_t count = random() % 2 == 0 ? 10 : 20000;
      std::vector<tensor> tensors;
      std::vector<ferry::future<void>> pending;
      const auto begin = [&](std::int64_t round) {
        tensors.push_back(values_of(group.rank(), round, count));
        pending.push_back(group.all_reduce(tensors.back(), reduce_op::sum, ferry::no_timeout));
      };
      for (int i = 0; i != before; ++i) begin(i);
      ferry::future<void> failing;
      if (group.rank() != odd) {
        const bool first = group.rank() == (odd + 1) % 3;
        failing = group.all_reduce(ferry::ones({5}), reduce_op::sum,
                                   late && first ? ferry::timeout(100ms) : ferry::no_timeout);
      } else if (!late) {
        failing = group.all_reduce(ferry::ones({6}), reduce_op::sum, ferry::no_timeout);
      }
      if (group.rank() != odd || !late) {
        for (int i = before; i != before + 4; ++i) begin(i);
        const std::string end = end_of(std::move(failing));
        CHECK_MESSAGE(has(end, late ? "not called by " + worker_name(odd) : worker_name(odd) + " "), end);
      }
      if (late) self.barrier();
      if (late && group.rank() == odd) {
        const std::string end = end_of(group.all_reduce(ferry::ones({5})));
        CHECK_MESSAGE(has(end, "not called by"), end);
        for (int i = before; i != before + 4; ++i) begin(i);
      }
      for (auto& each : pending) each.get();
      for (std::size_t i = 0; i != tensors.size(); ++i) {
        CHECK(all_are(tensors[i], [&](std::int64_t at) { return sum_of(3, static_cast<std::int64_t>(i), at); }));
      }
      every_operation(group, 77, 100);
      const ferry::group_plan plan = group.plan(collective::all_reduce, 8);
      CHECK(plan.use == algorithm::exchange);
      CHECK_MESSAGE(has(to_string(plan), "not in shared memory: a collective has failed in it"), to_string(plan));
    });
  }
}

TEST_CASE("shared group: without spinning, and with members that come at different times") {
  ferry_test::run_cluster(3,
                          [](ferry::worker& self) {
                            const process_group group(self, ferry::all_workers, {.shared_bytes = 16U << 10U});
                            for (std::int64_t round = 0; round != 30; ++round) {
                              if (round % 3 == group.rank())
                                self.rpc_sync<&worker_name>(worker_name((group.rank() + 1) % 3), 1);
                              every_operation(group, round, round * 20);
                            }
                          },
                          {.configure = [](ferry::worker_config& config) {
                            config.transports = {"shm"};
                            config.transport.max_spin = 0us;
                          }});
}

TEST_CASE(
    "shared group: a member that is killed in the middle ends the collectives of all others, and shrink() gives them a "
    "group") {
  for (const char* count : {"200", "300000"}) {
    ferry_test::captured_log log;
    const ferry_test::temporary_directory directory;
    const ferry_test::watchdog limit("processes of a group that share memory");
    const std::string meeting = "file://" + directory.file("store");
    std::vector<std::unique_ptr<child_process>> all;
    for (int rank = 0; rank != 3; ++rank) {
      all.push_back(std::make_unique<child_process>(ferry_test::child_options{
          .role = "shared group member", .arguments = {meeting, std::to_string(rank), "3", count}}));
    }
    for (const auto& each : all) REQUIRE(each->read_line() == "ready");
    for (const auto& each : all) CHECK(each->read_line() == "under way");
    all[1]->kill(SIGKILL);
    for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
      const std::string end = all[rank]->read_line();
      CHECK_MESSAGE(has(end, "worker1"), end);
    }
    for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) all[rank]->write_line("shrink");
    CHECK(all[0]->read_line() == "0 of 2: right, shared");
    CHECK(all[2]->read_line() == "1 of 2: right, shared");
    for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
      all[rank]->write_line("leave");
      CHECK(all[rank]->wait() == 0);
    }
  }
}

TEST_CASE("shared group: a member that ends at any store to the shared memory corrupts no result, and ends no member") {
  if (!ferry_test::can_step) return;
  ferry_test::captured_log log;
  constexpr long step = ferry_test::sanitized ? 4 : 1;  // sanitizers take long to start a process
  for (const std::string when : {"before", "after"}) {
    CAPTURE(when);
    for (long number = 1;; number += step) {
      CAPTURE(number);
      const ferry_test::temporary_directory directory;
      const ferry_test::watchdog limit("a member of a group whose other member ends");
      const std::string meeting = "file://" + directory.file("store");
      child_process child(
          {.role = "shared group member that ends at a store", .arguments = {meeting, std::to_string(number), when}});
      ferry::worker self = one_of_two(meeting, 0);
      process_group group(self);
      try {
        const bool right = small_collectives(group);
        CHECK(right);
      } catch (const ferry::error& problem) {
        CHECK_MESSAGE(has(problem.message(), "worker1"), std::string(problem.message()));
        group = group.shrink();
        CHECK(group.size() == 1);
        CHECK(small_collectives(group));
      }
      if (group.size() == 2) self.shutdown();
      const int status = child.wait();
      REQUIRE((status == 0 || status == 128 + SIGKILL));
      if (status != 0) continue;
      const long stores = std::stol(child.read_line());
      CHECK(stores >= 10);
      CHECK(stores < number);
      break;
    }
  }
}

}  // namespace shared_group_test
