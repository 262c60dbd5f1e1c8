// Programs that say nothing but init_rpc(), started with the environments of launchers.

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/rpc/group_observer.hpp>
#include <ferry/store/store_traits.hpp>

#include "captured_log.hpp"
#include "expect_error.hpp"
#include "launch_environment.hpp"
#include "ports.hpp"
#include "processes.hpp"
#include "temporary_directory.hpp"

namespace launch_test {

struct own_scheme {};
std::shared_ptr<ferry::hash_store> own_store() {
  static const auto only = std::make_shared<ferry::hash_store>();
  return only;
}

}  // namespace launch_test

template <>
struct ferry::store_traits<launch_test::own_scheme> {
  static constexpr std::string_view scheme = "own";
  static std::shared_ptr<store> open(const rendezvous_request&) { return launch_test::own_store()->share(); }
};

namespace launch_test {

using ferry_test::child_process;
using ferry_test::variables;

int doubled(int value) { return 2 * value; }

namespace {

const ferry_test::role launched("launched", [](const std::vector<std::string>&) {
  ferry::worker self = ferry::init_rpc();
  const int size = static_cast<int>(self.workers().size());
  const int sum = self.rpc_sync<launch_test::doubled>((self.id().value + 1) % size, self.id().value);
  ferry_test::tell_parent(self.name() + " of " + std::to_string(size) + " got " + std::to_string(sum) +
                          ", local rank " + std::to_string(ferry::this_launch().local_rank.value_or(-1)));
  self.shutdown();
  return 0;
});

void run_job(const std::vector<variables>& environments) {
  std::vector<child_process> workers;
  for (const variables& environment : environments)
    workers.emplace_back(ferry_test::child_options{.role = "launched", .environment = ferry_test::only(environment)});
  for (std::size_t rank = 0; rank != workers.size(); ++rank) {
    CHECK(workers[rank].read_line() == "worker" + std::to_string(rank) + " of " + std::to_string(workers.size()) +
                                           " got " + std::to_string(2 * rank) + ", local rank " + std::to_string(rank));
    CHECK(workers[rank].wait() == 0);
  }
}

// A number of a job, so that tests that run at the same time use different ports.
std::string job_number() { return std::to_string(::getpid() % 900 + 1); }

}  // namespace

TEST_CASE("init_rpc() forms the group of every launcher") {
  const std::string port = std::to_string(ferry_test::free_port(2));
  std::vector<variables> torchrun, srun, mpirun, mpiexec, mpirun_in_slurm;
  for (const char* rank : {"0", "1", "2"}) {
    torchrun.push_back({{"RANK", rank},
                        {"WORLD_SIZE", "3"},
                        {"LOCAL_RANK", rank},
                        {"LOCAL_WORLD_SIZE", "3"},
                        {"GROUP_RANK", "0"},
                        {"MASTER_ADDR", "localhost"},
                        {"MASTER_PORT", port},
                        {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
    srun.push_back({{"SLURM_PROCID", rank},
                    {"SLURM_LOCALID", rank},
                    {"SLURM_NODEID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "3"},
                    {"SLURM_STEP_TASKS_PER_NODE", "3"},
                    {"SLURM_STEP_NODELIST", "node-of-nobody[3]"},
                    {"SLURM_JOB_ID", job_number()},
                    {"SLURM_STEP_ID", "0"},
                    {"PMI_RANK", rank},
                    {"PMI_SIZE", "3"}});
    mpirun.push_back({{"OMPI_COMM_WORLD_RANK", rank},
                      {"OMPI_COMM_WORLD_SIZE", "3"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                      {"PMIX_RANK", rank},
                      {"PMIX_NAMESPACE", "prterun-test-" + job_number() + "@1"}});
    mpiexec.push_back({{"PMI_RANK", rank},
                       {"PMI_SIZE", "3"},
                       {"MPI_LOCALRANKID", rank},
                       {"MPI_LOCALNRANKS", "3"},
                       {"MASTER_PORT", port}});
    // The daemons of mpirun are tasks of a step of their own.
    mpirun_in_slurm.push_back(mpirun.back());
    mpirun_in_slurm.back().insert({{"SLURM_PROCID", "0"},
                                   {"SLURM_STEP_NUM_TASKS", "1"},
                                   {"SLURM_JOB_ID", job_number()},
                                   {"SLURM_STEP_ID", "1"},
                                   {"SLURM_STEP_NODELIST", "node-of-nobody"}});
  }
  SUBCASE("torchrun") { run_job(torchrun); }
  SUBCASE("srun") { run_job(srun); }
  SUBCASE("mpirun") { run_job(mpirun); }
  SUBCASE("mpiexec") { run_job(mpiexec); }
  SUBCASE("mpirun in a Slurm allocation") { run_job(mpirun_in_slurm); }
}

TEST_CASE("a start that waits for others says in the log for which, after ten seconds") {
  ferry_test::captured_log log;
  const ferry_test::temporary_directory directory;
  const auto start = [](const std::string& method, int rank) {
    const ferry::worker_config config{.name = "worker" + std::to_string(rank),
                                      .rank = rank,
                                      .world_size = 3,
                                      .init_method = method,
                                      .init_timeout = std::chrono::seconds(12)};
    try {
      (void)ferry::init_rpc(config);
    } catch (const ferry::error& problem) {
      return problem.kind();
    }
    return ferry::errc{};
  };
  ferry::errc without_others{};
  std::thread first([&] { without_others = start("file://" + directory.file("store"), 1); });
  const ferry::errc without_store = start("tcp://127.0.0.1:" + std::to_string(ferry_test::free_port()), 2);
  first.join();
  CHECK(without_others == ferry::errc::store_timeout);
  CHECK(log.has("worker1", "has waited 1", "for the group of 3 workers that meet in the", "missing: rank 0, rank 2"));
  CHECK(without_store == ferry::errc::store_unreachable);
  CHECK(log.has("the tcp store 127.0.0.1:", "has not answered for 1", "Connection refused", "Does rank 0 run"));
}

TEST_CASE("workers meet in a store of a scheme of one's own") {
  const auto config = [](int rank) {
    return ferry::worker_config{.rank = rank,
                                .world_size = 2,
                                .init_method = "own://here",
                                .stores = ferry::store_list<ferry::env_scheme, own_scheme>{}};
  };
  std::jthread other([&] { ferry::init_rpc(config(1)).shutdown(); });
  ferry::worker self = ferry::init_rpc(config(0));
  CHECK(self.rpc_sync<doubled>("worker1", 4) == 8);
  CHECK(own_store()->count() != 0);
  ferry::group_observer observer({.init_method = "own://here", .stores = ferry::store_list<own_scheme>{}});
  CHECK(observer.workers().size() == 2);
  self.shutdown();
}

TEST_CASE("a scheme that a worker was not told of is refused, with those that it knows") {
  const auto start = [](ferry::store_schemes known) {
    (void)ferry::init_rpc({.rank = 0, .world_size = 1, .init_method = "own://here", .stores = known});
  };
  expect_error(ferry::errc::bad_init_method, "known are env://, tcp://, file://", [&] { start({}); });
  expect_error(ferry::errc::bad_init_method, "known are tcp://",
               [&] { start(ferry::store_list<ferry::tcp_scheme>{}); });
}

}  // namespace launch_test
