// Tensors of shared_allocator(): handed over in place between processes, and what each side sees of the other's writes.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/shared_allocator.hpp>

#include "../worker/process_group.hpp"
#include "cluster.hpp"
#include "noise.hpp"

namespace shared_tensors_test {

using ferry::dtype;
using ferry::shared_allocator;
using ferry::tensor;
using ferry_test::cluster;
using rpc_test::process_group;

constexpr std::int64_t large = static_cast<std::int64_t>(ferry::least_shared);  // elements of u8, or more bytes

// ---- methods of the other process

std::mutex keeping;
std::vector<tensor>& kept() {
  static std::vector<tensor> all;
  return all;
}
void keep(tensor t) {
  const std::lock_guard lock(keeping);
  kept().push_back(std::move(t));
}
void drop_kept() {
  const std::lock_guard lock(keeping);
  kept().clear();
}
float first_kept(std::int64_t which) {
  const std::lock_guard lock(keeping);
  return kept().at(static_cast<std::size_t>(which)).at<float>(0);
}
bool first_kept_is_zero() {
  const std::lock_guard lock(keeping);
  return kept().at(0).to(dtype::f32).at<float>(0) == 0;
}
double sum_of(const tensor& t) { return ferry::sum(t).item<double>(); }
double total(const std::vector<tensor>& all) {
  double found = 0;
  for (const tensor& each : all) found += ferry::sum(each).item<double>();
  return found;
}
tensor same(tensor t) { return t; }
// Writes to what it was given, and tells what it then has.
double overwrite(tensor t, float value) {
  t.fill_(value);
  return ferry::sum(t).item<double>();
}
// Of two that came in one message: writes to the first, and tells of the second.
double overwrite_first(const std::vector<tensor>& all) {
  all.at(0).fill_(100);
  return ferry::sum(all.at(1)).item<double>();
}
tensor made_there(std::int64_t elements, float value) {
  tensor made = shared_allocator().empty({elements});
  made.fill_(value);
  return made;
}
std::uint64_t used_there() { return shared_allocator().stats().used_bytes; }
bool aligned(const tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data()) % 64 == 0; }

namespace {

tensor filled(std::int64_t elements, float value) {
  tensor made = shared_allocator().empty({elements});
  made.fill_(value);
  return made;
}

std::string channel_of(const ferry::worker& self) {
  for (const auto& each : self.route("worker1").devices) {
    if (each.from == ferry::device() && each.to == ferry::device()) return each.channel;
  }
  return "none";
}
std::string why_not_shared(const ferry::worker& self) {
  for (const auto& each : self.route("worker1").devices) {
    for (const auto& skipped : each.skipped) {
      if (skipped.name == "shm") return skipped.reason;
    }
  }
  return {};
}

// Memory comes back when the other end has dropped it, of which this process is told without a call.
void is_given_back(std::uint64_t used) {
  const ferry_test::watchdog limit("shared memory that was given back");
  while (shared_allocator().stats().used_bytes != used) std::this_thread::yield();
}

}  // namespace

TEST_CASE("a tensor of shared memory is handed over in place") {
  process_group all(2, {.transport = "shm"});
  const std::uint64_t used = shared_allocator().stats().used_bytes;
  CHECK(all.self.rpc_sync<sum_of>("worker1", filled(large, 1)) == large);
  CHECK(channel_of(all.self) == "shm");
  is_given_back(used);
  {
    const tensor t = filled(large, 1);
    all.self.rpc_sync<keep>("worker1", t);
    // In place: what this process writes from now on, the other one sees.
    t.at<float>(0) = 42;
    CHECK(all.self.rpc_sync<first_kept>("worker1", 0) == 42);
  }
  // It is lent, and so in use, although nothing here refers to it.
  CHECK(shared_allocator().stats().used_bytes == used + 4 * static_cast<std::uint64_t>(large));
  CHECK(all.self.rpc_sync<first_kept>("worker1", 0) == 42);
  all.self.rpc_sync<drop_kept>("worker1");
  is_given_back(used);
  all.leave();
}

TEST_CASE("what a handler writes to its argument is seen by no other process and no other call") {
  process_group all(2, {.transport = "shm"});
  for (const std::int64_t elements : {large, 20 * large}) {
    CAPTURE(elements);
    const tensor t = filled(elements, 1);
    for (int round = 0; round != 10; ++round) {
      CHECK(all.self.rpc_sync<overwrite>("worker1", t, 5.F) == 5.0 * static_cast<double>(elements));
      CHECK(t.at<float>(0) == 1);
      CHECK(all.self.rpc_sync<sum_of>("worker1", t) == static_cast<double>(elements));
    }
    // Twice in one message, as two tensors: one of them is a copy.
    for (int round = 0; round != 5; ++round) {
      CHECK(all.self.rpc_sync<overwrite_first>("worker1", std::vector<tensor>{t, t.slice(0)}) ==
            static_cast<double>(elements));
    }
    // And in calls at the same time.
    std::vector<ferry::future<double>> results;
    for (int i = 0; i != 20; ++i) {
      if (i % 2 == 0) {
        results.push_back(all.self.rpc_async<overwrite>("worker1", t, static_cast<float>(i + 2)));
      } else {
        results.push_back(all.self.rpc_async<sum_of>("worker1", t));
      }
    }
    for (int i = 0; i != 20; ++i)
      CHECK(results[static_cast<std::size_t>(i)].get() == (i % 2 == 0 ? i + 2 : 1) * static_cast<double>(elements));
    CHECK(ferry::sum(t).item<double>() == static_cast<double>(elements));
  }
  all.leave();
}

TEST_CASE("threads that send one tensor at the same time get what they would from copies") {
  process_group all(2, {.transport = "shm"});
  const tensor t = filled(4 * large, 1);
  std::vector<std::function<void()>> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i != 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round != 60; ++round) {
        const auto value = static_cast<float>(2 + i);
        if (all.self.rpc_sync<overwrite>("worker1", t, value) != 4.0 * large * value) wrong.fetch_add(1);
        if (all.self.rpc_sync<sum_of>("worker1", t) != 4.0 * large) wrong.fetch_add(1);
      }
    });
  }
  ferry_test::run_together(threads);
  CHECK(wrong.load() == 0);
  all.leave();
}

TEST_CASE("what arrives is in ordinary memory, also for a thread that makes tensors in shared memory") {
  process_group all(2, {.transport = "unix"});
  const ferry::shared_memory_scope shared;
  const tensor given = ferry::ones({large});
  CHECK(shared_allocator().owns(given));
  for (int round = 0; round != 20; ++round) {
    const tensor back = all.self.rpc_sync<same>("worker1", given);
    CHECK_FALSE(shared_allocator().owns(back));
    CHECK(ferry::equal(back, given));
  }
  all.leave();
}

TEST_CASE("indices and truth values are copied, so that they stay what was checked") {
  process_group all(2, {.transport = "shm"});
  for (const dtype type : {dtype::i64, dtype::bool_}) {
    const tensor t = shared_allocator().zeros({large}, type);
    all.self.rpc_sync<keep>("worker1", t);
    t.fill_(1);
    CHECK(all.self.rpc_sync<first_kept_is_zero>("worker1"));
    all.self.rpc_sync<drop_kept>("worker1");
  }
  all.leave();
}

TEST_CASE("a child that was forked changes nothing of its parent's shared memory") {
  process_group all(2, {.transport = "shm"});
  tensor here = filled(16 * large, 3);
  tensor there = all.self.rpc_sync<made_there>("worker1", 16 * large, 4.F);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    here = {};
    there = {};
    shared_allocator().trim();
    ::_exit(shared_allocator().owns(shared_allocator().empty({large})) ? 1 : 0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(ferry::sum(here).item<double>() == 48.0 * large);
  CHECK(all.self.rpc_sync<used_there>("worker1") == std::uint64_t{64} * static_cast<std::uint64_t>(large));
  CHECK(ferry::sum(there).item<double>() == 64.0 * large);
  there = {};
  all.leave();
}

TEST_CASE("results come in place, and tensors go back and forth") {
  process_group all(2, {.transport = "shm"});
  for (int round = 1; round != 30; ++round) {
    const tensor there = all.self.rpc_sync<made_there>("worker1", large + round, static_cast<float>(round));
    CHECK_FALSE(shared_allocator().owns(there));
    CHECK(ferry::sum(there).item<double>() == static_cast<double>((large + round) * round));
    const tensor here = filled(large, static_cast<float>(round));
    const tensor back = all.self.rpc_sync<same>("worker1", here);
    CHECK(back.at<float>(large - 1) == static_cast<float>(round));
    CHECK(ferry::equal(all.self.rpc_sync<same>("worker1", there), there));  // its own memory comes back as a copy
  }
  {
    const ferry_test::watchdog limit("shared memory of the other process that was given back");
    while (all.self.rpc_sync<used_there>("worker1") != 0) std::this_thread::yield();
  }
  all.leave();
}

TEST_CASE("views, small tensors and those of ordinary memory go their own way in the same message") {
  process_group all(2, {.transport = "shm"});
  const tensor block = filled(8 * large, 1);
  const tensor truth = shared_allocator().empty({large}, dtype::bool_);
  truth.fill_(true);
  const std::vector<tensor> mixed{block.slice(0, 0, large),
                                  filled(2 * large, 2),
                                  ferry::full({large}, 3, dtype::f32),
                                  filled(4, 4),
                                  filled(8 * large, 5).slice(0, 3, 3 + 2 * large),        // begins on no boundary
                                  filled(2 * large, 6).view({large, 2}).transpose(0, 1),  // one block
                                  filled(2 * large, 7).slice(0, 0, ferry::to_end, 2),     // with gaps
                                  filled(large, 8).view({large, 1}).expand({large, 3})};  // stride 0
  const double expected = total(mixed);
  for (int round = 0; round != 5; ++round) CHECK(all.self.rpc_sync<total>("worker1", mixed) == expected);
  std::vector<tensor> one_by_one = mixed;
  one_by_one.push_back(truth);
  for (const tensor& each : one_by_one) {
    CHECK(all.self.rpc_sync<aligned>("worker1", each));
    const tensor back = all.self.rpc_sync<same>("worker1", each);
    CHECK(back.shape() == each.shape());
    CHECK(back.dtype() == each.dtype());
    CHECK(ferry::equal(back, each));
  }
  all.leave();
}

TEST_CASE("more tensors than can be lent at once are copied, and all come back") {
  process_group all(2, {.transport = "shm"});
  const std::uint64_t used = shared_allocator().stats().used_bytes;
  constexpr int many = 300;
  for (int i = 0; i != many; ++i) all.self.rpc_sync<keep>("worker1", filled(large, static_cast<float>(i)));
  for (int i = 0; i != many; ++i) CHECK(all.self.rpc_sync<first_kept>("worker1", i) == static_cast<float>(i));
  CHECK(shared_allocator().stats().used_bytes > used);
  all.self.rpc_sync<drop_kept>("worker1");
  is_given_back(used);
  CHECK(all.self.rpc_sync<sum_of>("worker1", filled(large, 2)) == 2 * large);
  all.leave();
}

TEST_CASE("memory that a killed process was reading is free again") {
  process_group all(3, {.transport = "shm"});
  const std::uint64_t used = shared_allocator().stats().used_bytes;
  for (int i = 0; i != 20; ++i) {
    all.self.rpc_sync<keep>("worker1", filled(large, 1));
    all.self.rpc_sync<keep>("worker2", filled(large, 2));
  }
  CHECK(shared_allocator().stats().used_bytes == used + std::uint64_t{40} * 4 * static_cast<std::uint64_t>(large));
  all.child(1).kill();
  is_given_back(used + std::uint64_t{20} * 4 * static_cast<std::uint64_t>(large));
  CHECK(all.self.rpc_sync<first_kept>("worker2", 19) == 2);
  all.child(2).kill();
  is_given_back(used);
}

TEST_CASE("what a process has got is its own when the sender is gone") {
  tensor got;
  {
    process_group all(2, {.transport = "shm"});
    got = all.self.rpc_sync<made_there>("worker1", 4 * large, 3.F);
    all.child(1).kill();
    (void)all.child(1).wait();
  }
  CHECK(ferry::sum(got).item<double>() == 12.0 * large);
  got.fill_(2);
  CHECK(ferry::sum(got).item<double>() == 8.0 * large);
}

TEST_CASE("a connection that is lost keeps what is lent, and gives it back") {
  process_group all(2, {.transport = "shm"});
  const std::uint64_t used = shared_allocator().stats().used_bytes;
  for (int round = 0; round != 4; ++round) {
    const tensor t = filled(large, static_cast<float>(round));
    all.self.rpc_sync<keep>("worker1", t);
    ferry_test::break_connections();
    const ferry_test::watchdog limit("a connection that is opened again");
    for (;;) {
      try {
        const float first = all.self.rpc_sync<first_kept>("worker1", round);
        CHECK(first == static_cast<float>(round));
        break;
      } catch (const ferry::error&) {  // lost with the connection
      }
    }
  }
  all.self.rpc_sync<drop_kept>("worker1");
  is_given_back(used);
  all.leave();
}

TEST_CASE("the route says why tensors of shared memory are copied") {
  const tensor t = filled(large, 1);
  const auto in_group = [&](const std::function<void(ferry::worker_config&)>& configure) {
    int started = 0;
    std::mutex counting;
    cluster group(2, {.configure = [&](ferry::worker_config& config) {
                    const std::lock_guard lock(counting);
                    config.transports = {"shm"};
                    if (started++ == 0) configure(config);
                  }});
    CHECK(group[0].rpc_sync<sum_of>("worker1", t) == large);
    CHECK(group[0].rpc_sync<overwrite>("worker1", t, 3.F) == 3 * large);
    CHECK(t.at<float>(0) == 1);
    return channel_of(group[0]) + ": " + why_not_shared(group[0]);
  };
  CHECK(in_group([](ferry::worker_config&) {}) == "shm: ");
  CHECK(in_group([](ferry::worker_config& config) {
          config.transport.share_host_memory = false;
        }).starts_with("inline: an end of the connection shares no host memory"));
  process_group sockets(2, {.transport = "unix"});
  CHECK(sockets.self.rpc_sync<sum_of>("worker1", t) == large);
  CHECK(channel_of(sockets.self) == "inline");
  CHECK(why_not_shared(sockets.self) == "it is for connections over shm");
  sockets.leave();
}

}  // namespace shared_tensors_test
