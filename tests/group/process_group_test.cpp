#include <ferry/group/process_group.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "temporary_directory.hpp"

namespace process_group_test {

using namespace std::chrono_literals;
using ferry::algorithm;
using ferry::collective;
using ferry::errc;
using ferry::process_group;
using ferry::reduce_op;
using ferry::tensor;
using ferry_test::cluster;
using ferry_test::run_cluster;
using ferry_test::worker_name;

int twice(int value) { return 2 * value; }

// The same on every member: what rank r has in round `seed`.
std::vector<double> elements_of(int rank, unsigned seed, std::size_t count) {
  std::mt19937 random(seed * 1000 + static_cast<unsigned>(rank));
  std::vector<double> made(count);
  for (double& each : made) each = static_cast<double>(static_cast<int>(random() % 17) - 8) / 4;  // sums are exact
  return made;
}
tensor tensor_of_rank(int rank, unsigned seed, std::size_t count) {
  return ferry::from_vector(elements_of(rank, seed, count));
}
double combined(reduce_op op, int n, unsigned seed, std::size_t count, std::size_t index) {
  double value = elements_of(0, seed, count)[index];
  for (int rank = 1; rank != n; ++rank) {
    const double other = elements_of(rank, seed, count)[index];
    switch (op) {
      case reduce_op::sum:
      case reduce_op::avg: value += other; break;
      case reduce_op::prod: value *= other; break;
      case reduce_op::min: value = std::min(value, other); break;
      case reduce_op::max: value = std::max(value, other); break;
    }
  }
  return op == reduce_op::avg ? value / n : value;
}
std::vector<double> all_combined(reduce_op op, int n, unsigned seed, std::size_t count) {
  std::vector<double> made(count);
  for (std::size_t i = 0; i != count; ++i) made[i] = combined(op, n, seed, count, i);
  return made;
}
bool equals(const tensor& t, const std::vector<double>& expected) {
  const tensor flat = t.contiguous();
  if (static_cast<std::size_t>(flat.numel()) != expected.size()) return false;
  return expected.empty() || std::memcmp(flat.data(), expected.data(), expected.size() * sizeof(double)) == 0;
}

constexpr reduce_op all_reductions[] = {reduce_op::sum, reduce_op::avg, reduce_op::min, reduce_op::max,
                                        reduce_op::prod};

// Every collective, in an order and with sizes that `seed` makes, against the plain model.
void random_collectives(const process_group& group, unsigned seed, int rounds) {
  std::mt19937 random(seed);
  const int n = group.size();
  const int rank = group.rank();
  for (int round = 0; round != rounds; ++round) {
    const unsigned data = seed + static_cast<unsigned>(round);
    const auto count = static_cast<std::size_t>(random() % 70) * static_cast<std::size_t>(n);
    const int root = static_cast<int>(random() % static_cast<unsigned>(n));
    const reduce_op op = all_reductions[random() % 5];
    const tensor own = tensor_of_rank(rank, data, count);
    INFO("round " << round << ", " << count << " elements, root " << root << ", " << ferry::to_string(op));
    switch (random() % 7) {
      case 0: group.barrier().get(); break;
      case 1:
        group.broadcast(own, root).get();
        CHECK(equals(own, elements_of(root, data, count)));
        break;
      case 2:
        group.all_reduce(own, op).get();
        CHECK(equals(own, all_combined(op, n, data, count)));
        break;
      case 3:
        group.reduce(own, root, op).get();
        CHECK(equals(own, rank == root ? all_combined(op, n, data, count) : elements_of(rank, data, count)));
        break;
      case 4: {
        const tensor all = group.all_gather(own).get();
        REQUIRE(all.size(0) == n);
        for (int each = 0; each != n; ++each) CHECK(equals(all.select(0, each), elements_of(each, data, count)));
        break;
      }
      case 5: {
        const tensor share = group.reduce_scatter(own, op).get();
        const auto whole = all_combined(op, n, data, count);
        const auto length = static_cast<std::ptrdiff_t>(count) / n;
        CHECK(equals(share, std::vector<double>(whole.begin() + rank * length, whole.begin() + (rank + 1) * length)));
        CHECK(equals(own, elements_of(rank, data, count)));
        break;
      }
      case 6: {
        const tensor got = group.all_to_all(own).get();
        std::vector<double> expected;
        const auto length = static_cast<std::ptrdiff_t>(count) / n;
        for (int from = 0; from != n; ++from) {
          const auto theirs = elements_of(from, data, count);
          expected.insert(expected.end(), theirs.begin() + rank * length, theirs.begin() + (rank + 1) * length);
        }
        CHECK(equals(got, expected));
        break;
      }
    }
  }
}

TEST_CASE(
    "process_group: ranks are the order of the names, of all workers by id; what they disagree about is refused") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group all(self);
    CHECK(all.size() == 3);
    CHECK(all.rank() == self.id().value);
    CHECK(all.names() == std::vector<std::string>{"worker0", "worker1", "worker2"});
    const process_group turned(self, {"worker2", "worker0", "worker1"}, {.name = "turned"});
    CHECK(turned.rank() == (self.id().value + 1) % 3);
    CHECK(turned.rank_of("worker0") == 1);
    CHECK(turned.name() == "turned");
    expect_error(errc::unknown_worker, "'worker7'", [&] { (void)turned.rank_of("worker7"); });
    if (self.id().value != 2) {
      const bool first = self.id().value == 0;
      const std::vector<std::string> names =
          first ? std::vector<std::string>{"worker0", "worker1"} : std::vector<std::string>{"worker1", "worker0"};
      expect_error(errc::group_mismatch, "another order of members", [&] { process_group(self, names); });
    }
    CHECK_FALSE(process_group().valid());
    expect_error(errc::no_state, "empty handle", [] { (void)process_group().rank(); });
  });
}

TEST_CASE("process_group: random collectives equal a plain model, by each algorithm, in one piece and in many") {
  const std::vector<ferry::plan_rule> exchanges{{.op = collective::all_reduce, .use = algorithm::exchange},
                                                {.op = collective::all_gather, .use = algorithm::exchange},
                                                {.op = collective::reduce_scatter, .use = algorithm::exchange},
                                                {.op = collective::broadcast, .use = algorithm::tree},
                                                {.op = collective::reduce, .use = algorithm::tree}};
  const std::vector<ferry::plan_rule> rings{{.op = collective::all_reduce, .use = algorithm::ring},
                                            {.op = collective::all_gather, .use = algorithm::ring},
                                            {.op = collective::reduce_scatter, .use = algorithm::ring},
                                            {.op = collective::broadcast, .use = algorithm::chain},
                                            {.op = collective::reduce, .use = algorithm::chain}};
  for (const int n : {1, 2, 3, 4}) {
    run_cluster(n, [&](ferry::worker& self) {
      for (const std::size_t chunk : {std::size_t{1} << 20U, std::size_t{40}}) {
        random_collectives(process_group(self, ferry::all_workers, {.chunk = chunk}), 1, 25);
        random_collectives(process_group(self, ferry::all_workers, {.chunk = chunk, .plan = exchanges}), 2, 25);
        random_collectives(process_group(self, ferry::all_workers, {.chunk = chunk, .window = 2, .plan = rings}), 3,
                           25);
      }
    });
  }
}

TEST_CASE("process_group: many collectives under way at once, and groups over subsets beside each other") {
  run_cluster(4, [](ferry::worker& self) {
    const int rank = self.id().value;
    const process_group all(self, ferry::all_workers, {.chunk = 256});
    const process_group half(self, {worker_name(rank % 2), worker_name(rank % 2 + 2)}, {.name = "half"});
    std::vector<tensor> tensors;
    std::vector<ferry::future<void>> pending;
    for (unsigned i = 0; i != 40; ++i) {
      tensors.push_back(tensor_of_rank(rank, i, 100));
      pending.push_back(all.all_reduce(tensors.back()));
      tensors.push_back(tensor_of_rank(rank / 2, i, 100));
      pending.push_back(half.all_reduce(tensors.back()));
    }
    for (auto& each : pending) each.get();
    for (unsigned i = 0; i != 40; ++i) {
      CHECK(equals(tensors[2 * i], all_combined(reduce_op::sum, 4, i, 100)));
      CHECK(equals(tensors[2 * i + 1], all_combined(reduce_op::sum, 2, i, 100)));
    }
  });
}

TEST_CASE("process_group: sums repeat bit for bit and are the same on every member") {
  run_cluster(3, [](ferry::worker& self) {
    for (const algorithm use : {algorithm::exchange, algorithm::ring}) {
      const process_group group(self, ferry::all_workers,
                                {.chunk = 512, .plan = {{.op = collective::all_reduce, .use = use}}});
      std::mt19937 random(static_cast<unsigned>(group.rank()));
      std::vector<float> own(1000);
      for (float& each : own) each = static_cast<float>(random()) / 3e7F;
      tensor first;
      for (int run = 0; run != 10; ++run) {
        const tensor t = ferry::from_vector(own);
        group.all_reduce(t, reduce_op::avg).get();
        if (!first.defined()) first = t;
        CHECK(std::memcmp(t.data(), first.data(), t.nbytes()) == 0);
      }
      const tensor all = group.all_gather(first).get();
      for (int each = 0; each != 3; ++each)
        CHECK(std::memcmp(all.select(0, each).data(), first.data(), first.nbytes()) == 0);
    }
  });
}

TEST_CASE("process_group: tensors of other layouts and types, empty ones, scalars; what cannot be done is refused") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    const tensor turned = ferry::arange(6).to(ferry::dtype::f64).view({2, 3}).contiguous().transpose(0, 1);
    group.all_reduce(turned).get();
    CHECK(turned.at<double>(2, 1) == 10);
    CHECK(turned.at<double>(1, 0) == 2);
    const tensor one = ferry::tensor_of(std::int32_t{21});
    group.all_reduce(one).get();
    CHECK(one.item<std::int32_t>() == 42);
    const tensor none = ferry::zeros({0, 4});
    group.all_reduce(none).get();
    CHECK(group.all_gather(none).get().shape() == ferry::dims{2, 0, 4});
    CHECK(group.reduce_scatter(none).get().shape() == ferry::dims{0, 4});
    const tensor narrow = ferry::full({3}, 1.5, ferry::dtype::bf16);
    group.all_reduce(narrow, reduce_op::avg).get();
    CHECK(static_cast<float>(narrow.at<ferry::bfloat16>(0)) == 1.5F);
    const std::uint64_t before = one.version();
    group.broadcast(one, 0).get();
    CHECK(one.version() > before);

    expect_error(errc::invalid_argument, "no rank 2", [&] { (void)group.broadcast(one, 2); });
    expect_error(errc::invalid_argument, "is this one", [&] { (void)group.send(one, group.rank()); });
    expect_error(errc::invalid_argument, "undefined", [&] { (void)group.all_reduce(tensor()); });
    expect_error(errc::bad_dtype, "average", [&] { (void)group.all_reduce(one, reduce_op::avg); });
    expect_error(errc::bad_shape, "[3]", [&] { (void)group.all_to_all(ferry::zeros({3})); });
    const tensor same = ferry::ones({1}).expand({4});
    expect_error(errc::bad_shape, "all_reduce in group 'group'", [&] { (void)group.all_reduce(same); });
    expect_error(errc::bad_shape, "more than once", [&] { (void)group.broadcast(same, 0); });
    CHECK(group.all_gather(same).get().shape() == ferry::dims{2, 4});
    const std::string other = self.name() == "worker0" ? "worker1" : "worker0";
    for (const std::string& part : {std::string("group 'others'"), "name=" + self.name(), "its members: " + other})
      expect_error(errc::invalid_argument, part, [&] { const process_group none(self, {other}, {.name = "others"}); });
    group.barrier().get();  // what was refused took no number
  });
}

TEST_CASE("process_group: the least and the greatest of elements of which one is NaN is NaN, whichever member has it") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t shared_bytes : {std::size_t{0}, std::size_t{1} << 20U}) {
    run_cluster(3, [&](ferry::worker& self) {
      const process_group group(self, ferry::all_workers, {.shared_bytes = shared_bytes});
      const int rank = self.id().value;
      for (const ferry::dtype type : {ferry::dtype::f32, ferry::dtype::f64, ferry::dtype::f16, ferry::dtype::bf16}) {
        for (const reduce_op how : {reduce_op::min, reduce_op::max}) {
          CAPTURE(dtype_name(type));
          std::vector<float> own(4, static_cast<float>(rank));
          own[static_cast<std::size_t>(rank)] = nan;
          const tensor t = ferry::from_vector(own).to(type);
          group.all_reduce(t, how).get();
          const tensor result = t.to(ferry::dtype::f32);
          for (std::int64_t i = 0; i != 3; ++i) CHECK(std::isnan(result.at<float>(i)));
          CHECK(result.at<float>(3) == (how == reduce_op::min ? 0 : 2));
        }
      }
    });
  }
}

TEST_CASE("process_group: send and receive are matched in order, apart from collectives") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, {.chunk = 64});
    const int next = (group.rank() + 1) % 3;
    const int last = (group.rank() + 2) % 3;
    std::vector<ferry::future<void>> pending;
    std::vector<tensor> sent;
    std::vector<tensor> received;
    for (unsigned i = 0; i != 10; ++i) {
      sent.push_back(tensor_of_rank(group.rank(), i, 30));
      received.push_back(ferry::zeros({30}, ferry::dtype::f64));
      pending.push_back(group.receive(received.back(), last));
      if (i == 5) group.barrier().get();
      pending.push_back(group.send(sent.back(), next));
    }
    for (auto& each : pending) each.get();
    for (unsigned i = 0; i != 10; ++i) CHECK(equals(received[i], elements_of(last, i, 30)));
  });
}

TEST_CASE("process_group: plan() says algorithm, steps and bytes, and rules of the group come first") {
  run_cluster(4, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers,
                              {.chunk = 1024,
                               .plan = {{.op = collective::all_reduce, .up_to_bytes = 8, .use = algorithm::ring}},
                               .shared_bytes = 0});
    CHECK(group.plan(collective::all_reduce, 8).use == algorithm::ring);
    CHECK(group.plan(collective::all_reduce, 9).use == algorithm::exchange);
    const ferry::group_plan large = group.plan(collective::all_reduce, 1U << 20U);
    CHECK(large.use == algorithm::ring);
    CHECK(large.steps == 6);
    CHECK(large.bytes_per_process == 6 * (1U << 20U) / 4);
    CHECK(large.pieces == 256);
    CHECK(large.busbw_factor == 1.5);
    CHECK(to_string(large) ==
          "all_reduce of 1048576 bytes among 4: ring, 6 steps, 1572864 bytes per process, 256 pieces of messages up to "
          "1024 "
          "bytes");
    CHECK(group.plan(collective::broadcast, 100).use == algorithm::tree);
    CHECK(group.plan(collective::broadcast, 1U << 20U).use == algorithm::chain);
    CHECK(group.plan(collective::barrier, 0).steps == 2);
    expect_error(errc::invalid_argument, "no barrier by ring", [&] {
      process_group(self, ferry::all_workers, {.plan = {{.op = collective::barrier, .use = algorithm::ring}}});
    });
  });
}

TEST_CASE("process_group: a handle that outlives its worker, and collectives under way at its end, give errors") {
  cluster workers(2);
  process_group kept;
  process_group other;
  workers.each([&](ferry::worker& self) { (self.id().value == 0 ? kept : other) = process_group(self); });
  auto pending = kept.barrier(ferry::no_timeout);
  workers.shutdown(false);
  CHECK_THROWS_AS(pending.get(), ferry::error);
  CHECK_THROWS_AS(kept.barrier().get(), ferry::error);
}

TEST_CASE("process_group: a member may leave when its collective is complete, however far the others are") {
  for (int i = 0; i != 10; ++i) {
    run_cluster(4,
                [&](ferry::worker& self) {
                  const process_group group(self);
                  const tensor t = ferry::ones({1000});
                  if (i % 2 == 0) {
                    group.all_reduce(t).get();
                    CHECK(t.at<float>(999) == 4);
                  } else {
                    group.barrier().get();
                  }
                  self.leave();
                },
                {.configure = [](ferry::worker_config& config) { config.transports = {"tcp"}; }});
  }
}

TEST_CASE(
    "[row 9] [row 10] one rendezvous serves workers and groups, made before or after calls; without a worker there are "
    "neither") {
  const auto life = [](int rank, const std::string& meeting, bool group_first) {
    ferry::worker self =
        ferry::init_rpc({.name = worker_name(rank), .rank = rank, .world_size = 2, .init_method = meeting});
    process_group group;
    if (group_first) group = process_group(self);
    CHECK(self.rpc_sync<process_group_test::twice>(worker_name(1 - rank), 21) == 42);
    if (!group_first) group = process_group(self);
    const tensor t = ferry::ones({3});
    group.all_reduce(t).get();
    CHECK(t.at<float>(2) == 2);
    self.shutdown();
    return group;
  };
  ferry_test::temporary_directory directory;
  for (const bool group_first : {true, false}) {
    const std::string meeting = "file://" + directory.file(group_first ? "first" : "second");
    process_group kept;
    ferry_test::run_together(
        {[&] { kept = life(0, meeting, group_first); }, [&] { (void)life(1, meeting, group_first); }});
    CHECK(kept.size() == 2);  // the group is still there, the worker is not
    expect_error(errc::not_initialized, "", [] { (void)ferry::rref<int>(1); });
    expect_error(errc::not_initialized, "", [] { (void)process_group(ferry::all_workers); });
    CHECK_THROWS_AS(kept.barrier().get(), ferry::error);
  }
}

}  // namespace process_group_test
