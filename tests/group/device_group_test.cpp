// Collectives on tensors of devices, on the fake CUDA runtime.

#include <ferry/group/process_group.hpp>

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/autograd.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/ops/ops.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "processes.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace device_group_test {

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

// What rank r has in round `data`. Sums are exact.
tensor elements_of(int rank, int data, std::int64_t count) {
  std::mt19937 random(static_cast<unsigned>(data * 1000 + rank));
  std::vector<float> made(static_cast<std::size_t>(count));
  for (float& each : made) each = static_cast<float>(static_cast<int>(random() % 17) - 8) / 4;
  return ferry::from_vector(made);
}
tensor sum_of(int n, int data, std::int64_t count) {
  tensor sum = elements_of(0, data, count).clone();
  for (int rank = 1; rank != n; ++rank) sum = sum + elements_of(rank, data, count);
  return sum;
}
bool same(const tensor& a, const tensor& b) { return ferry::equal(a.to(host), b.to(host)); }
bool is_filled(const tensor& t, float value) { return same(t, ferry::full(t.shape(), value, t.dtype())); }

// Every collective once, on tensors of `where`.
void all_collectives(const process_group& group, const device& where, std::int64_t share, int data) {
  const int n = group.size();
  const int rank = group.rank();
  const std::int64_t count = share * n;
  const int root = data % n;
  const auto own = [&] { return elements_of(rank, data, count).to(where); };
  INFO(share << " elements each of " << n << ", on " << ferry::to_string(where));
  const tensor sum = sum_of(n, data, count);
  {
    const tensor t = own();
    group.all_reduce(t).get();
    CHECK(t.device() == where);
    CHECK(same(t, sum));
  }
  {
    const tensor t = own();
    group.broadcast(t, root).get();
    CHECK(same(t, elements_of(root, data, count)));
  }
  {
    const tensor t = own();
    group.reduce(t, root, reduce_op::avg).get();
    CHECK(same(t, rank == root ? sum / static_cast<float>(n) : elements_of(rank, data, count)));
  }
  {
    const tensor all = group.all_gather(own()).get();
    CHECK(all.device() == where);
    REQUIRE(all.size(0) == n);
    for (int each = 0; each != n; ++each) CHECK(same(all.select(0, each), elements_of(each, data, count)));
  }
  {
    const tensor t = own();
    const tensor mine = group.reduce_scatter(t).get();
    CHECK(same(mine, sum.narrow(0, rank * share, share)));
    CHECK(same(t, elements_of(rank, data, count)));
  }
  {
    const tensor got = group.all_to_all(own()).get();
    for (int each = 0; each != n; ++each) {
      CHECK(same(got.narrow(0, each * share, share), elements_of(each, data, count).narrow(0, rank * share, share)));
    }
  }
  {
    const tensor t = own();
    const tensor came = ferry::zeros({count}, dtype::f32, where);
    const auto sent = group.send(t, (rank + 1) % n);
    group.receive(came, (rank + n - 1) % n).get();
    sent.get();
    CHECK(same(came, elements_of((rank + n - 1) % n, data, count)));
  }
}

// A member of the processes below: makes collectives as the parent says, and tells how they end.
const ferry_test::role member("device group member", [](const std::vector<std::string>& arguments) {
  const int rank = std::stoi(arguments.at(1));
  ferry::worker self = ferry::init_rpc({.name = ferry_test::worker_name(rank),
                                        .rank = rank,
                                        .world_size = std::stoi(arguments.at(2)),
                                        .init_method = arguments.at(0),
                                        .rpc_timeout = 100s});
  process_group group(self, ferry::all_workers, {.chunk = 4096});
  ferry_test::tell_parent("ready");
  for (;;) {
    const std::string order = ferry_test::ask_parent();
    if (order == "leave") break;
    if (order == "shrink") group = group.shrink();
    const tensor t = ferry::ones({order == "large" ? 1 << 20 : 64}, dtype::f32, gpu_of(rank));
    std::string answer;
    try {
      group.all_reduce(t, reduce_op::sum, ferry::no_timeout).get();
      answer = "sum " + std::to_string(static_cast<int>(t.to(host).at<float>(0)));
    } catch (const ferry::error& problem) {
      answer = problem.message();
    }
    ferry_test::tell_parent(answer);
  }
  while (ferry::get_staging_memory_stats(ferry::device_kind::cuda).blocks_in_use != 0) std::this_thread::yield();
  self.shutdown(false);
  return 0;
});

void until(const std::function<bool()>& holds) {
  while (!holds()) std::this_thread::yield();
}

TEST_CASE("process_group: collectives on tensors of devices") {
  for (const int n : {2, 3}) {
    run_cluster(n, [](ferry::worker& self) {
      const int rank = self.id().value;
      const process_group group(self, ferry::all_workers, {.chunk = 512, .window = 2});
      int data = 0;
      for (const std::int64_t share : {1, 40, 700}) all_collectives(group, gpu_of(rank), share, ++data);
      // Of nothing, and of one member.
      const tensor nothing = ferry::zeros({0}, dtype::f32, gpu_of(rank));
      group.all_reduce(nothing).get();
      CHECK(group.all_gather(nothing).get().device() == gpu_of(rank));
      const process_group alone(self, {self.name()}, {.name = "alone"});
      all_collectives(group, gpu_of(rank), 8, ++data);
      const tensor own = elements_of(rank, 1, 5).to(gpu_of(rank));
      alone.all_reduce(own, reduce_op::avg).get();
      CHECK(same(own, elements_of(rank, 1, 5)));
    });
  }
  until([] { return ferry::get_staging_memory_stats(ferry::device_kind::cuda).blocks_in_use == 0; });
}

TEST_CASE("process_group: a plan for tensors of devices has the algorithm of the CPU, and says that they are staged") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, {.shared_bytes = 0});
    constexpr std::size_t large = std::size_t{1} << 20U;
    const ferry::group_plan plan = group.plan(collective::all_reduce, large, ferry::device_kind::cuda);
    CHECK(plan.memory == ferry::device_kind::cuda);
    CHECK(plan.use == group.plan(collective::all_reduce, large).use);
    CHECK(to_string(plan).find("among 2: staged ring, 2 steps") != std::string::npos);
  });
}

TEST_CASE("process_group: the first collective has its tensors on a device at one member, which only receives") {
  for (int on_device = 0; on_device != 3; ++on_device) {
    run_cluster(3, [&](ferry::worker& self) {
      const int rank = self.id().value;
      const process_group group(self);
      const int root = (on_device + 1) % 3;
      const auto full_of = [&](float value) {
        return ferry::full({500}, value, dtype::f32, rank == on_device ? gpu_of(rank) : host);
      };
      const tensor t = full_of(static_cast<float>(rank));
      group.broadcast(t, root).get();
      CHECK(is_filled(t, root));
      // Those after it, under way at once, of every kind.
      std::vector<ferry::future<void>> pending;
      std::vector<tensor> all;
      for (int i = 0; i != 12; ++i) {
        all.push_back(i % 3 == 0 ? full_of(1) : ferry::full({500}, 1.0F));
        pending.push_back(group.all_reduce(all.back()));
      }
      for (auto& each : pending) each.get();
      for (const tensor& each : all) CHECK(is_filled(each, 3));
      group.barrier().get();
    });
  }
}

TEST_CASE("process_group: collectives on devices leave shared memory to those on the CPU") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self);
    const auto before = group.plan(collective::all_reduce, 1000).use;
    std::vector<ferry::future<void>> pending;
    std::vector<tensor> all;
    for (int i = 0; i != 30; ++i) {
      all.push_back(ferry::full({500}, 1.0F, dtype::f32, i % 2 == 0 ? host : gpu_of(self.id().value)));
      pending.push_back(group.all_reduce(all.back()));
    }
    for (auto& each : pending) each.get();
    for (const tensor& each : all) CHECK(is_filled(each, 3));
    CHECK(group.plan(collective::all_reduce, 1000).use == before);
  });
}

TEST_CASE("process_group: members on one device, on others and on the CPU make one collective") {
  run_cluster(3, [](ferry::worker& self) {
    const int rank = self.id().value;
    const process_group group(self, ferry::all_workers, {.chunk = 1024});
    const device where = rank == 2 ? host : gpu_of(1);
    for (const std::int64_t share : {3, 900}) all_collectives(group, where, share, 7);
  });
}

TEST_CASE(
    "process_group: a collective on a device follows what its caller has queued, and what the caller queues follows "
    "it") {
  run_cluster(2, [](ferry::worker& self) {
    const int rank = self.id().value;
    const device where = gpu_of(rank);
    const process_group group(self, ferry::all_workers, {.chunk = 4096});
    const ferry::stream on = ferry::pool_stream(where);
    const ferry::stream_guard current(on);
    constexpr std::int64_t count = 20000;
    for (int round = 0; round != 4; ++round) {
      const tensor t = ferry::zeros({count}, dtype::f32, where);
      t.fill_(rank + 1);                // queued before: read by the collective
      const tensor before = t.clone();  // reads the tensor before the result is written
      group.barrier().get();
      const std::uint64_t waits = fake_cuda::host_synchronizations();
      const auto pending = group.all_reduce(t);
      pending.get();
      const tensor doubled = t + t;  // queued after: sees the result
      group.barrier().get();
      if (round != 0) CHECK(fake_cuda::host_synchronizations() == waits);  // page-locked memory is there
      group.barrier().get();
      CHECK(is_filled(before, static_cast<float>(rank + 1)));
      CHECK(is_filled(doubled, 6));
      const tensor all = group.all_gather(doubled).get();
      CHECK(is_filled(all + all, 12));
      // A continuation has streams of its own.
      const tensor u = ferry::full({count}, 1.0F, dtype::f32, where);
      const tensor after = group.all_reduce(u).then([u] { return u + u; }).get();
      CHECK(is_filled(after, 4));
      group.barrier().get();
    }
  });
}

TEST_CASE("process_group: no thread of the caller's waits for a device that does nothing yet") {
  run_cluster(2, [](ferry::worker& self) {
    const device where = gpu_of(self.id().value);
    const process_group group(self);
    const tensor t = ferry::full({5000}, 2.0F, dtype::f32, where);
    group.all_reduce(t).get();  // page-locked memory is there from now on
    group.barrier().get();
    std::unique_ptr<fake_cuda::pause> still;
    if (self.id().value == 0) still = std::make_unique<fake_cuda::pause>();
    group.barrier().get();
    const auto pending = group.all_reduce(t);
    CHECK_FALSE(pending.ready());
    const tensor small = ferry::tensor_of({1.0F});
    group.all_reduce(small).get();  // others go on
    CHECK_FALSE(pending.ready());
    still.reset();
    pending.get();
    CHECK(is_filled(t, 8));
  });
}

TEST_CASE("process_group: strided tensors of devices are written in place") {
  run_cluster(2, [](ferry::worker& self) {
    const int rank = self.id().value;
    const device where = gpu_of(rank);
    const process_group group(self);
    const tensor whole = ferry::full({40, 30}, static_cast<float>(rank + 1), dtype::f32, where);
    const tensor part = whole.narrow(1, 10, 5).transpose(0, 1);
    group.all_reduce(part).get();
    CHECK(is_filled(part, 3));
    CHECK(is_filled(whole.narrow(1, 0, 10), static_cast<float>(rank + 1)));
    const tensor gathered = group.all_gather(part).get();
    CHECK(gathered.shape() == ferry::dims{2, 5, 40});
    CHECK(is_filled(gathered, 3));
  });
}

TEST_CASE("process_group: functions with gradients take tensors of devices") {
  run_cluster(2, [](ferry::worker& self) {
    const int rank = self.id().value;
    const process_group group(self);
    const tensor x = ferry::full({4}, static_cast<float>(rank + 1), dtype::f32, gpu_of(rank));
    ferry::require_grad(x);
    const tensor y = ferry::all_reduce(group, x, reduce_op::sum);
    CHECK(is_filled(ferry::detach(y), 3));
    ferry::backward(ferry::sum(y * y));
    CHECK(ferry::grad(x).device() == gpu_of(rank));
    CHECK(is_filled(ferry::grad(x), 12));
  });
}

TEST_CASE("process_group: a collective on a device that cannot succeed ends, and its tensors may go at once") {
  const ferry_test::captured_log quiet;
  run_cluster(2, [](ferry::worker& self) {
    const int rank = self.id().value;
    const device where = gpu_of(rank);
    const process_group group(self, ferry::all_workers, {.limit = 20s, .chunk = 1024});
    for (int round = 0; round != 3; ++round) {
      {
        tensor t = ferry::full({30000 + 8 * rank}, 1.0F, dtype::f32, where);
        const auto pending = group.all_reduce(t);
        t = {};
        expect_error(errc::group_mismatch, "all_reduce(sum) of f32", [&] { pending.get(); });
      }
      const tensor next = ferry::full({30000}, 1.0F, dtype::f32, where);
      group.all_reduce(next).get();
      CHECK(is_filled(next, 2));
    }
    group.barrier().get();
    // A limit that expires while the device does nothing.
    std::unique_ptr<fake_cuda::pause> still;
    if (rank == 0) still = std::make_unique<fake_cuda::pause>();
    group.barrier().get();
    const tensor t = ferry::tensor_of({1.0F});
    tensor u = rank == 0 ? ferry::full({3000}, 1.0F, dtype::f32, where) : ferry::full({3000}, 1.0F);
    expect_error(errc::rpc_timeout, "every member has called it",
                 [&] { group.all_reduce(u, reduce_op::sum, 200ms).get(); });
    group.barrier().get();
    still.reset();
    u = {};
    group.all_reduce(t).get();
  });
  until([] { return ferry::get_staging_memory_stats(ferry::device_kind::cuda).blocks_in_use == 0; });
}

TEST_CASE("all_gather of tensors on devices: each is read in the order of its own call") {
  struct newest_first {
    newest_first() { fake_cuda::set_schedule(fake_cuda::schedule::newest_first); }
    ~newest_first() { fake_cuda::set_schedule(fake_cuda::schedule::random); }
  } schedule;
  constexpr int members = 3;
  ferry_test::cluster group(members, {.configure = [](ferry::worker_config& own) {
                              for (int to = 0; to != members; ++to)
                                own.set_device_map(ferry_test::worker_name(to), {{gpu_of(1), gpu_of(1)}});
                            }});
  for (int round = 0; round != 20; ++round) {
    group.each([&](ferry::worker& self) {
      const auto value_of = [&](int rank) { return static_cast<float>(10 * round + rank); };
      const tensor own = ferry::full({5000}, value_of(self.id().value), dtype::f32, gpu_of(1));
      const auto all = self.all_gather(own);
      for (int from = 0; from != members; ++from)
        CHECK(is_filled(all.at(ferry_test::worker_name(from)), value_of(from)));
    });
  }
}

TEST_CASE("process_group: a copy that fails ends the collective at every member") {
  const ferry_test::captured_log quiet;
  run_cluster(2, [](ferry::worker& self) {
    const int rank = self.id().value;
    const process_group group(self);
    const tensor t = ferry::full({100}, 1.0F, dtype::f32, gpu_of(rank));
    group.all_reduce(t).get();
    const tensor u = rank == 0 ? t : t.to(host);
    group.barrier().get();
    if (rank == 0) fake_cuda::fail(fake_cuda::call::memcpy_async, 719);  // cudaErrorLaunchFailure
    group.barrier().get();
    expect_error(errc::device_failure, "worker0: cannot copy", [&] { group.all_reduce(u).get(); });
    group.barrier().get();  // a member that has failed first must not drop the group before the other has heard why
  });
}

TEST_CASE(
    "process_group: a member that is killed ends the collectives of others on devices, and they go on without it") {
  const ferry_test::captured_log quiet;
  const ferry_test::watchdog limit("processes of a process_group on devices");
  const ferry_test::temporary_directory directory;
  std::vector<std::unique_ptr<ferry_test::child_process>> all;
  for (int rank = 0; rank != 3; ++rank) {
    all.push_back(std::make_unique<ferry_test::child_process>(ferry_test::child_options{
        .role = "device group member", .arguments = {"file://" + directory.file("store"), std::to_string(rank), "3"}}));
  }
  for (const auto& each : all) CHECK(each->read_line() == "ready");
  for (const auto& each : all) each->write_line("sum");
  for (const auto& each : all) CHECK(each->read_line() == "sum 3");
  for (const int rank : {0, 2}) all[static_cast<std::size_t>(rank)]->write_line("large");
  all[1]->kill(SIGKILL);
  for (const int rank : {0, 2}) {
    const std::string end = all[static_cast<std::size_t>(rank)]->read_line();
    CHECK_MESSAGE(end.find("worker1") != std::string::npos, end);
  }
  for (const int rank : {0, 2}) all[static_cast<std::size_t>(rank)]->write_line("shrink");
  for (const int rank : {0, 2}) CHECK(all[static_cast<std::size_t>(rank)]->read_line() == "sum 2");
  for (const int rank : {0, 2}) all[static_cast<std::size_t>(rank)]->write_line("leave");
  for (const int rank : {0, 2}) CHECK(all[static_cast<std::size_t>(rank)]->wait() == 0);
}

}  // namespace device_group_test
