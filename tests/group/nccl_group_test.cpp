// Collectives on tensors of devices by NCCL, on doubles of it and of the CUDA runtime.

#include <ferry/group/process_group.hpp>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/device/memory.hpp>
#include <ferry/ops/ops.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "fake_nccl.hpp"

namespace nccl_group_test {

using namespace std::chrono_literals;
using ferry::algorithm;
using ferry::collective;
using ferry::device;
using ferry::dtype;
using ferry::errc;
using ferry::process_group;
using ferry::reduce_op;
using ferry::tensor;
using ferry_test::run_cluster;

constexpr device host{};
device gpu_of(int rank) { return {ferry::device_kind::cuda, rank}; }

[[maybe_unused]] const bool replaced = [] {
  ferry::detail::use_nccl(&fake_nccl::functions());
  return true;
}();

// Nothing that NCCL forbids has been done, and nothing is left.
struct strict {
  strict() { fake_nccl::reset(); }
  strict(const strict&) = delete;
  strict& operator=(const strict&) = delete;
  ~strict() {
    while (fake_nccl::communicators() != 0) std::this_thread::yield();  // given back on threads of their own
    for (const std::string& each : fake_nccl::complaints()) FAIL_CHECK(each);
  }
};

tensor elements_of(int rank, std::int64_t count, dtype type = dtype::f32) {
  std::vector<float> made(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i != made.size(); ++i)
    made[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 9);
  return ferry::from_vector(made).to(type);
}
tensor sum_of(int n, std::int64_t count) {
  tensor sum = elements_of(0, count).clone();
  for (int rank = 1; rank != n; ++rank) sum = sum + elements_of(rank, count);
  return sum;
}
bool same(const tensor& a, const tensor& b) { return ferry::equal(a.to(host), b.to(host)); }
bool is_filled(const tensor& t, float value) { return same(t, ferry::full(t.shape(), value, t.dtype())); }

// Every collective that NCCL makes, once: six.
void all_collectives(const process_group& group, const device& where, std::int64_t share) {
  const int n = group.size();
  const int rank = group.rank();
  const std::int64_t count = share * n;
  const auto own = [&] { return elements_of(rank, count).to(where); };
  const tensor sum = sum_of(n, count);
  for (const int root : {0, n - 1}) {
    const tensor t = own();
    group.broadcast(t, root).get();
    CHECK(same(t, elements_of(root, count)));
    const tensor u = own();
    group.reduce(u, root, reduce_op::avg).get();
    CHECK(same(u, rank == root ? sum / static_cast<float>(n) : elements_of(rank, count)));
  }
  const tensor t = own();
  group.all_reduce(t).get();
  CHECK(same(t, sum));
  const tensor all = group.all_gather(own()).get();
  CHECK(all.device() == where);
  for (int each = 0; each != n; ++each) CHECK(same(all.select(0, each), elements_of(each, count)));
  const tensor kept = own();
  CHECK(same(group.reduce_scatter(kept).get(), sum.narrow(0, rank * share, share)));
  CHECK(same(kept, own()));
  const tensor got = group.all_to_all(own()).get();
  for (int each = 0; each != n; ++each) {
    CHECK(same(got.narrow(0, each * share, share), elements_of(each, count).narrow(0, rank * share, share)));
  }
}
constexpr std::uint64_t collectives_of_all = 8;

TEST_CASE("process_group by NCCL: every collective on tensors of devices") {
  for (const int n : {2, 3, 4}) {
    for (const int slowness : {0, 3}) {
      const strict rules;
      fake_nccl::set_slowness(slowness);
      run_cluster(n, [](ferry::worker& self) {
        const int rank = self.id().value;
        const process_group group(self, ferry::all_workers, {.nccl = true});
        for (const std::int64_t share : {1, 40, 3000}) all_collectives(group, gpu_of(rank), share);
        // What NCCL has nothing to do with.
        group.barrier().get();
        const tensor nothing = ferry::zeros({0}, dtype::f32, gpu_of(rank));
        group.all_reduce(nothing).get();
        const tensor own = ferry::ones({5});
        group.all_reduce(own).get();
        CHECK(is_filled(own, static_cast<float>(group.size())));
        const tensor came = ferry::zeros({3}, dtype::f32, gpu_of(rank));
        const auto sent = group.send(ferry::ones({3}, dtype::f32, gpu_of(rank)), (rank + 1) % group.size());
        group.receive(came, (rank + group.size() - 1) % group.size()).get();
        sent.get();
        CHECK(is_filled(came, 1));
      });
      CHECK(fake_nccl::completed() == 3 * collectives_of_all);
    }
  }
}

TEST_CASE("process_group by NCCL: types of elements that it has, and those that it has not") {
  const strict rules;
  run_cluster(2, [](ferry::worker& self) {
    const int rank = self.id().value;
    const process_group group(self, ferry::all_workers, {.nccl = true});
    const auto sums = [&](dtype type) {
      const tensor t = elements_of(rank, 50, type).to(gpu_of(rank));
      group.all_reduce(t).get();
      CHECK(same(t, sum_of(2, 50).to(type)));
    };
    for (const dtype type : {dtype::f64, dtype::f32, dtype::f16, dtype::bf16, dtype::i32, dtype::i64}) sums(type);
    group.barrier().get();
    const std::uint64_t so_far = fake_nccl::completed();
    CHECK(so_far == 6);
    group.barrier().get();
    // NCCL's minimum of a NaN and a number is the number.
    const tensor t = ferry::tensor_of({rank == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0F}).to(gpu_of(rank));
    group.all_reduce(t, reduce_op::min).get();
    CHECK(std::isnan(t.to(host).at<float>(0)));
    group.barrier().get();
    CHECK(fake_nccl::completed() == so_far);
    group.barrier().get();
    const tensor u = elements_of(rank, 10, dtype::i64).to(gpu_of(rank));
    group.all_reduce(u, reduce_op::max).get();
    group.barrier().get();
    CHECK(fake_nccl::completed() == so_far + 1);
  });
}

TEST_CASE("process_group by NCCL: members with tensors elsewhere make the others do without") {
  const strict rules;
  run_cluster(3, [](ferry::worker& self) {
    const int rank = self.id().value;
    for (const std::size_t shared : {std::size_t{0}, std::size_t{1} << 20U}) {
      const process_group group(self, ferry::all_workers, {.chunk = 512, .shared_bytes = shared, .nccl = true});
      all_collectives(group, rank == 1 ? host : gpu_of(rank), 300);
      group.barrier().get();
      CHECK(fake_nccl::begun() == 0);
      group.barrier().get();
    }
    // One has its tensors on another device than those of the communicator.
    const process_group group(self, ferry::all_workers, {.nccl = true});
    const tensor first = ferry::ones({8}, dtype::f32, gpu_of(rank));
    group.all_reduce(first).get();
    const tensor second = ferry::ones({8}, dtype::f32, gpu_of(rank == 2 ? 5 : rank));
    group.all_reduce(second).get();
    CHECK(is_filled(second, 3));
    const tensor third = ferry::ones({8}, dtype::f32, gpu_of(rank));
    group.all_reduce(third).get();
    CHECK(is_filled(third, 3));
    group.barrier().get();
    CHECK(fake_nccl::completed() == 2);
  });
}

TEST_CASE(
    "process_group by NCCL: collectives under way at once begin in one order at all members, whatever is between "
    "them") {
  const strict rules;
  run_cluster(3, [](ferry::worker& self) {
    const int rank = self.id().value;
    const process_group group(self, ferry::all_workers, {.chunk = 256, .nccl = true});
    for (int round = 0; round != 5; ++round) {
      std::vector<ferry::future<void>> pending;
      std::vector<tensor> all;
      for (int i = 0; i != 24; ++i) {
        const bool elsewhere = i % 5 == 4 && rank == i % 3;  // staged, since of one member it is on the CPU
        all.push_back(ferry::full({100 + i}, 1.0F, dtype::f32, elsewhere ? host : gpu_of(rank)));
        pending.push_back(i % 7 == 6 ? group.barrier() : group.all_reduce(all.back()));
        if (i % 7 == 6) all.pop_back();
      }
      for (auto& each : pending) each.get();
      for (const tensor& each : all) CHECK(is_filled(each, 3));
    }
    group.barrier().get();
    CHECK(fake_nccl::completed() == 5 * (24 - 3 - 4));  // without barriers, and those with a tensor elsewhere
  });
}

TEST_CASE(
    "process_group by NCCL: a collective follows what its caller has queued, and what the caller queues follows it") {
  const strict rules;
  run_cluster(2, [](ferry::worker& self) {
    const int rank = self.id().value;
    const device where = gpu_of(rank);
    const process_group group(self, ferry::all_workers, {.nccl = true});
    const ferry::stream on = ferry::pool_stream(where);
    const ferry::stream_guard current(on);
    for (int round = 0; round != 5; ++round) {
      const tensor t = ferry::zeros({20000}, dtype::f32, where);
      t.fill_(rank + 1);
      const tensor before = t.clone();
      const auto pending = group.all_reduce(t);
      pending.get();
      const tensor doubled = t + t;
      CHECK(is_filled(before, static_cast<float>(rank + 1)));
      CHECK(is_filled(doubled, 6));
      // Its tensor may go at once, and in strides.
      const tensor whole = ferry::full({40, 30}, static_cast<float>(rank + 1), dtype::f32, where);
      auto strided = whole.narrow(1, 10, 5).transpose(0, 1);
      const auto later = group.all_reduce(strided);
      strided = {};
      later.get();
      CHECK(is_filled(whole.narrow(1, 10, 5), 3));
      CHECK(is_filled(whole.narrow(1, 0, 10), static_cast<float>(rank + 1)));
    }
  });
}

TEST_CASE("process_group by NCCL: its plan says so, or why not") {
  const strict rules;
  run_cluster(2, [](ferry::worker& self) {
    const auto cuda = ferry::device_kind::cuda;
    const process_group group(self, ferry::all_workers, {.nccl = true});
    const ferry::group_plan plan = group.plan(collective::all_reduce, 1 << 20, cuda);
    CHECK(plan.use == algorithm::nccl);
    CHECK(plan.not_nccl.empty());
    CHECK(to_string(plan).find("among 2: nccl, 2 steps, 1048576 bytes per process, 1 piece on the device") !=
          std::string::npos);
    CHECK(group.plan(collective::all_reduce, 1 << 20).use != algorithm::nccl);
    CHECK(group.plan(collective::send, 8, cuda).not_nccl == "it makes no send");
    CHECK(group.plan(collective::all_reduce, 0, cuda).not_nccl == "there are no elements");
    const process_group without(self, ferry::all_workers, {.name = "without"});
    CHECK(without.plan(collective::all_reduce, 8, cuda).not_nccl.find("group_options::nccl") != std::string::npos);
    const process_group ruled(self, ferry::all_workers,
                              {.name = "ruled",
                               .plan = {{.op = collective::all_reduce, .up_to_bytes = 100, .use = algorithm::ring},
                                        {.op = collective::all_reduce, .use = algorithm::nccl}},
                               .nccl = true});
    CHECK(ruled.plan(collective::all_reduce, 100, cuda).not_nccl == "a rule of the group says otherwise");
    CHECK(ruled.plan(collective::all_reduce, 101, cuda).use == algorithm::nccl);
    CHECK(ruled.plan(collective::all_reduce, 101).use != algorithm::nccl);
    const tensor t = ferry::ones({25}, dtype::f32, gpu_of(self.id().value));
    ruled.all_reduce(t).get();
    ruled.barrier().get();
    CHECK(fake_nccl::begun() == 0);
  });
}

TEST_CASE("process_group by NCCL: members that differ in asking for it make no group") {
  const ferry_test::captured_log quiet;
  const strict rules;
  run_cluster(2, [](ferry::worker& self) {
    expect_error(errc::group_mismatch, "options",
                 [&] { const process_group group(self, ferry::all_workers, {.nccl = self.id().value == 0}); });
  });
}

TEST_CASE("process_group by NCCL: without a communicator at one member all do without") {
  const ferry_test::captured_log quiet;
  for (const bool later : {false, true}) {
    const strict rules;
    fake_nccl::fail_next_communicator(later);
    run_cluster(3, [](ferry::worker& self) {
      const int rank = self.id().value;
      const process_group group(self, ferry::all_workers, {.nccl = true});
      std::vector<ferry::future<void>> pending;
      std::vector<tensor> all;
      for (int i = 0; i != 6; ++i) {
        all.push_back(ferry::ones({100}, dtype::f32, gpu_of(rank)));
        pending.push_back(group.all_reduce(all.back()));
      }
      for (auto& each : pending) each.get();
      for (const tensor& each : all) CHECK(is_filled(each, 3));
      CHECK(group.plan(collective::all_reduce, 400, ferry::device_kind::cuda).not_nccl.find("communicator") !=
            std::string::npos);
    });
    CHECK(fake_nccl::begun() == 0);
  }
}

TEST_CASE("process_group by NCCL: members that call something else, or nothing, are found before NCCL hears of it") {
  const ferry_test::captured_log quiet;
  const strict rules;
  run_cluster(3, [](ferry::worker& self) {
    const int rank = self.id().value;
    const auto sums = [&](const process_group& group) {
      for (int i = 0; i != 2; ++i) {
        const tensor right = ferry::ones({30}, dtype::f32, gpu_of(rank));
        group.all_reduce(right).get();
        CHECK(is_filled(right, 3));
      }
    };
    for (int round = 0; round != 3; ++round) {
      const process_group group(self, ferry::all_workers, {.limit = 20s, .nccl = true});
      if (round != 0) sums(group);
      const tensor wrong = ferry::ones({30 + (rank == round ? 1 : 0)}, dtype::f32, gpu_of(rank));
      expect_error(errc::group_mismatch, "all_reduce(sum) of f32", [&] { group.all_reduce(wrong).get(); });
      sums(group);  // without NCCL: a member may have said yes, and others may have begun
      self.barrier();
    }
    CHECK(fake_nccl::completed() == 4);
    self.barrier();
    const process_group group(self, ferry::all_workers, {.limit = 60s, .nccl = true});
    sums(group);
    self.barrier();
    const tensor t = ferry::ones({30}, dtype::f32, gpu_of(rank));
    if (rank != 2) {
      expect_error(errc::rpc_timeout, "worker2", [&] { group.all_reduce(t, reduce_op::sum, 1s).get(); });
    }
    self.barrier();
    if (rank == 2) expect_error(errc::rpc_timeout, "worker2", [&] { group.all_reduce(t).get(); });
    sums(group);
    self.barrier();
    CHECK(fake_nccl::completed() == 6);
    self.barrier();
  });
}

// What goes wrong once all have agreed: every member hears of it, gives NCCL up, and the group goes on.
enum class cancels { nothing, on_the_device, while_it_is_made };
void fails_once(const std::function<void()>& prepare, errc error, const std::string& text, ferry::timeout limit,
                cancels what = cancels::nothing) {
  const ferry_test::captured_log quiet;
  const strict rules;
  run_cluster(3, [&](ferry::worker& self) {
    const int rank = self.id().value;
    const process_group group(self, ferry::all_workers, {.limit = 60s, .nccl = true});
    if (what != cancels::while_it_is_made) {
      const tensor first = ferry::ones({200}, dtype::f32, gpu_of(rank));
      group.all_reduce(first).get();
      CHECK(is_filled(first, 3));
    }
    group.barrier().get();
    const std::uint64_t before = fake_nccl::begun();
    if (rank == 0) prepare();
    group.barrier().get();
    std::vector<ferry::future<void>> pending;
    for (int i = 0; i != 4; ++i) {
      tensor t = ferry::ones({200}, dtype::f32, gpu_of(rank));
      pending.push_back(
          group.all_reduce(t, reduce_op::sum, i == 0 ? limit : ferry::timeout{}));  // whose tensor goes at once
    }
    if (what != cancels::nothing && rank == 1) {
      if (what == cancels::on_the_device) {
        while (fake_nccl::begun() < before + 3) std::this_thread::yield();
      } else {
        while (fake_nccl::communicators() != 3) std::this_thread::yield();
      }
      pending.front().cancel();
    }
    expect_error(error, text, [&] { pending.front().get(); });
    for (auto& each : pending) {
      while (!each.ready()) std::this_thread::yield();  // ends, whatever way
    }
    group.barrier().get();
    const std::uint64_t begun = fake_nccl::begun();
    group.barrier().get();
    for (int i = 0; i != 3; ++i) {
      const tensor t = ferry::ones({200}, dtype::f32, gpu_of(rank));
      group.all_reduce(t).get();
      CHECK(is_filled(t, 3));
    }
    group.barrier().get();
    CHECK(fake_nccl::begun() == begun);
    CHECK(group.plan(collective::all_reduce, 400, ferry::device_kind::cuda).not_nccl.find("given ") !=
          std::string::npos);
    while (fake_nccl::communicators() != 0) std::this_thread::yield();  // given up on other threads
    group.barrier().get();
  });
}

TEST_CASE("process_group by NCCL: what NCCL refuses at one member fails at all, which give it up") {
  fails_once([] { fake_nccl::fail_next_collective(1); }, errc::device_failure, "worker1: NCCL: unhandled system error",
             {});
}
TEST_CASE("process_group by NCCL: an error of the network ends what is on the devices") {
  fails_once(
      [] {
        fake_nccl::lose_next_collective(2);
        fake_nccl::break_network();
      },
      errc::device_failure, "NCCL: remote process exited or there was a network error", {});
}
TEST_CASE("process_group by NCCL: a limit that expires ends what is on the devices") {
  fails_once([] { fake_nccl::lose_next_collective(2); }, errc::rpc_timeout, "every member has called it", 1500ms);
}
TEST_CASE("process_group by NCCL: cancelling ends what is on the devices") {
  fails_once([] { fake_nccl::lose_next_collective(2); }, errc::call_cancelled, "worker1 has cancelled it", {},
             cancels::on_the_device);
}
TEST_CASE("process_group by NCCL: cancelling ends it while its communicator is made") {
  fails_once([] { fake_nccl::set_slowness(std::numeric_limits<int>::max()); }, errc::call_cancelled,
             "worker1 has cancelled it", {}, cancels::while_it_is_made);
}
TEST_CASE("process_group by NCCL: a limit ends what NCCL is still beginning") {
  fails_once([] { fake_nccl::set_slowness(std::numeric_limits<int>::max()); }, errc::rpc_timeout,
             "every member has called it", 1s, cancels::nothing);
}

TEST_CASE("process_group by NCCL: a member that leaves for good ends what waits for it, on the devices, too") {
  const ferry_test::captured_log quiet;
  for (const bool on_device : {false, true}) {
    const strict rules;
    run_cluster(3, [&](ferry::worker& self) {
      const int rank = self.id().value;
      const process_group group(self, ferry::all_workers, {.limit = 60s, .nccl = true});
      const tensor first = ferry::ones({200}, dtype::f32, gpu_of(rank));
      group.all_reduce(first).get();
      self.barrier();
      const std::uint64_t before = fake_nccl::begun();
      if (rank == 2) fake_nccl::lose_next_collective(2);
      self.barrier();  // after which any of them may leave at once
      const tensor t = ferry::ones({200}, dtype::f32, gpu_of(rank));
      if (rank == 2) {
        ferry::future<void> pending;
        if (on_device) {
          pending = group.all_reduce(t);
          while (fake_nccl::begun() != before + 3) std::this_thread::yield();
        }
        self.shutdown(false);
        if (on_device) CHECK_THROWS_AS(pending.get(), ferry::error);
        return;
      }
      expect_error(errc::peer_lost, "worker2", [&] { group.all_reduce(t).get(); });
      const process_group smaller = group.shrink();
      const tensor u = ferry::ones({200}, dtype::f32, gpu_of(rank));
      smaller.all_reduce(u).get();
      CHECK(is_filled(u, 2));
      CHECK(smaller.plan(collective::all_reduce, 400, ferry::device_kind::cuda).use == algorithm::nccl);
      self.barrier(ferry::members({"worker0", "worker1"}));
      self.shutdown(false);
    });
  }
}

}  // namespace nccl_group_test
