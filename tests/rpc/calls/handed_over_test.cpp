// Ordinary tensors between processes of which one waits for the other: copied once, and handed over.

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <sched.h>

#include <ferry/device/cpu_pool.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/shared_allocator.hpp>

#include "../worker/process_group.hpp"
#include "cluster.hpp"
#include "noise.hpp"

namespace handed_over_test {

using ferry::shared_allocator;
using ferry::tensor;
using rpc_test::process_group;

constexpr std::int64_t mebibyte = std::int64_t{1} << 18U;  // elements of f32

// ---- methods of the other process

std::vector<tensor>& kept() {
  static std::vector<tensor> all;
  return all;
}
void keep(tensor t) { kept().push_back(std::move(t)); }
void drop_kept() { kept().clear(); }
float first_kept(std::int64_t which) { return kept().at(static_cast<std::size_t>(which)).at<float>(0); }
double sum_of(const tensor& t) { return ferry::sum(t).item<double>(); }
double overwrite(tensor t, float value) {
  t.fill_(value);
  return ferry::sum(t).item<double>();
}
tensor same(tensor t) { return t; }
tensor made_there(std::int64_t elements, float value) { return ferry::full({elements}, value, ferry::dtype::f32); }
std::uint64_t handed_over_there() { return shared_allocator().stats().handed_over_bytes; }
double total(const std::vector<tensor>& all) {
  double found = 0;
  for (const tensor& each : all) found += ferry::sum(each).item<double>();
  return found;
}

namespace {

// A sender that does not spin takes its reader for one that it has to wait for.
const rpc_test::group_options in_turns{.transport = "shm", .max_spin = std::chrono::microseconds(0)};

tensor ones(std::int64_t elements) { return ferry::ones({elements}); }
std::uint64_t handed_over() { return shared_allocator().stats().handed_over_bytes; }

void becomes(std::uint64_t bytes) {
  const ferry_test::watchdog limit("memory that was handed over");
  while (handed_over() != bytes) std::this_thread::yield();
}

// So many more are handed over and kept. Those go through the ring whose reader empties it while they are written, as may always be.
void hand_over(const process_group& all, int tensors, std::int64_t elements = mebibyte) {
  const ferry_test::watchdog limit("tensors that are handed over");
  const std::uint64_t bytes = handed_over() + static_cast<std::uint64_t>(4 * elements * tensors);
  while (handed_over() < bytes) all.self.rpc_sync<keep>("worker1", ones(elements));
}

// The first large tensors find that the ring is full; those after them are handed over.
void fill_ring(const process_group& all) {
  hand_over(all, 1);
  all.self.rpc_sync<drop_kept>("worker1");
  becomes(0);
}

}  // namespace

TEST_CASE("a large tensor is copied once and handed over, and is what it was when it was sent") {
  process_group all(2, in_turns);
  fill_ring(all);
  tensor t = ones(mebibyte);
  all.self.rpc_sync<keep>("worker1", t);
  CHECK(handed_over() == 4 * mebibyte);
  t.fill_(7);
  CHECK(all.self.rpc_sync<first_kept>("worker1", 0) == 1);
  CHECK(all.self.rpc_sync<overwrite>("worker1", t, 3.F) == 3.0 * mebibyte);
  CHECK(t.at<float>(0) == 7);
  CHECK(all.self.rpc_sync<first_kept>("worker1", 0) == 1);
  all.self.rpc_sync<drop_kept>("worker1");
  becomes(0);
  // Memory that was written to there is used for the next one.
  for (int round = 1; round != 100; ++round) {
    const std::int64_t elements = mebibyte / 4 + round * 3001;
    CHECK(all.self.rpc_sync<sum_of>("worker1", t.slice(0, 0, mebibyte / 2)) == 3.5 * mebibyte);
    CHECK(all.self.rpc_sync<overwrite>("worker1", ones(elements), 2.F) == 2.0 * static_cast<double>(elements));
  }
  becomes(0);
  all.leave();
}

TEST_CASE("results are handed over, and what arrived is sent on") {
  process_group all(2, in_turns);
  bool any = false;
  for (int round = 1; round != 80; ++round) {
    tensor got = all.self.rpc_sync<made_there>("worker1", 4 * mebibyte, static_cast<float>(round));
    CHECK(ferry::sum(got).item<double>() == 4.0 * mebibyte * round);
    got.fill_(5);
    any = any || all.self.rpc_sync<handed_over_there>("worker1") >= 16 * mebibyte;
    const tensor given = ferry_test::noise({mebibyte + round});
    const tensor back = all.self.rpc_sync<same>("worker1", given);
    CHECK(ferry::equal(back, given));
    CHECK(ferry::equal(all.self.rpc_sync<same>("worker1", back), given));
    CHECK(got.at<float>(4 * mebibyte - 1) == 5);
  }
  CHECK(any);
  {
    const ferry_test::watchdog limit("memory of the other process that was handed over");
    while (all.self.rpc_sync<handed_over_there>("worker1") != 0) std::this_thread::yield();
  }
  all.leave();
}

TEST_CASE("tensors of all kinds and threads at once get there") {
  process_group all(2, in_turns);
  fill_ring(all);
  const tensor indices = ferry::arange(0, mebibyte, 1, ferry::dtype::i64);
  const tensor shared = shared_allocator().copy(ones(mebibyte));
  const std::vector<tensor> mixed{ones(mebibyte),
                                  indices,
                                  ones(3),
                                  shared,
                                  shared,
                                  ones(2 * mebibyte).slice(0, 3),
                                  ones(mebibyte).view({mebibyte / 2, 2}).transpose(0, 1)};
  const double expected = total(mixed);
  std::atomic<int> wrong{0};
  std::vector<std::function<void()>> threads;
  for (int i = 0; i != 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round != 15; ++round) {
        if (all.self.rpc_sync<total>("worker1", mixed) != expected) wrong.fetch_add(1);
        const auto value = static_cast<float>(i + 2);
        if (all.self.rpc_sync<overwrite>("worker1", shared, value) != 1.0 * mebibyte * value) wrong.fetch_add(1);
      }
    });
  }
  ferry_test::run_together(threads);
  CHECK(wrong.load() == 0);
  hand_over(all, 2);
  all.self.rpc_sync<drop_kept>("worker1");
  CHECK(ferry::equal(all.self.rpc_sync<same>("worker1", indices), indices));
  all.leave();
}

TEST_CASE("what readers keep is bounded, by number and by bytes, and what is beyond goes through the rings") {
  process_group all(2, in_turns);
  fill_ring(all);
  constexpr int many = 200;
  for (int i = 0; i != many; ++i) all.self.rpc_sync<keep>("worker1", ferry::full({mebibyte / 4}, i, ferry::dtype::f32));
  CHECK(handed_over() > 32 * mebibyte);
  CHECK(handed_over() <= 64 * mebibyte);
  for (int i = 0; i != many; ++i) CHECK(all.self.rpc_sync<first_kept>("worker1", i) == static_cast<float>(i));
  all.self.rpc_sync<drop_kept>("worker1");
  becomes(0);
  const std::size_t limit = ferry::get_cpu_pool_stats().limit_bytes;
  ferry::cpu_pool_set_limit(10 * mebibyte);
  hand_over(all, 8, mebibyte / 4);
  for (int i = 0; i != 12; ++i) all.self.rpc_sync<keep>("worker1", ones(mebibyte / 4));
  CHECK(handed_over() <= 10 * mebibyte);
  all.self.rpc_sync<drop_kept>("worker1");
  ferry::cpu_pool_set_limit(limit);
  becomes(0);
  all.leave();
}

TEST_CASE("the death of either process takes nothing from the other") {
  tensor got;
  {
    process_group all(2, in_turns);
    fill_ring(all);
    hand_over(all, 9);
    for (bool there = false; !there; there = all.self.rpc_sync<handed_over_there>("worker1") >= 4 * mebibyte)
      got = all.self.rpc_sync<made_there>("worker1", mebibyte, 3.F);
    CHECK(handed_over() >= 36 * mebibyte);
    all.child(1).kill();
    (void)all.child(1).wait();
    becomes(0);
  }
  CHECK(ferry::sum(got).item<double>() == 3.0 * mebibyte);
  got.fill_(2);
  CHECK(ferry::sum(got).item<double>() == 2.0 * mebibyte);
}

TEST_CASE("processes that share a processor hand over by themselves") {
  cpu_set_t usual;
  CPU_ZERO(&usual);
  REQUIRE(::sched_getaffinity(0, sizeof usual, &usual) == 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int each = 0; each != CPU_SETSIZE && CPU_COUNT(&one) == 0; ++each) {
    if (CPU_ISSET(each, &usual)) CPU_SET(each, &one);
  }
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  process_group all(2, {.transport = "shm"});
  const ferry_test::watchdog limit("a tensor that is handed over");
  while (handed_over() == 0) {
    all.self.rpc_sync<keep>("worker1", ones(4 * mebibyte));
    if (handed_over() == 0) all.self.rpc_sync<drop_kept>("worker1");
  }
  CHECK(all.self.rpc_sync<first_kept>("worker1", 0) == 1);
  all.self.rpc_sync<drop_kept>("worker1");
  all.leave();
  CHECK(::sched_setaffinity(0, sizeof usual, &usual) == 0);
}

TEST_CASE("over sockets nothing is handed over") {
  process_group all(2, {.transport = "unix", .max_spin = std::chrono::microseconds(0)});
  for (int i = 0; i != 5; ++i) CHECK(all.self.rpc_sync<sum_of>("worker1", ones(4 * mebibyte)) == 4 * mebibyte);
  CHECK(handed_over() == 0);
  all.leave();
}

}  // namespace handed_over_test
