// How the environments of launchers are interpreted. The tables contain what the launchers really set.

#include <ferry/store/launch.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/store/rendezvous.hpp>

#include <ferry/test_kit/store_conformance.hpp>

#include "launch_environment.hpp"

namespace launch_test {

using namespace ferry::test_kit;
using ferry::errc;
using ferry::this_launch;
using ferry_test::launch_environment;
using ferry_test::variables;

namespace {

variables join(variables one, const variables& other) {
  for (const auto& [name, value] : other) one[name] = value;
  return one;
}

const variables torchrun{{"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "4"},
                         {"GROUP_RANK", "1"},
                         {"GROUP_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node1"},
                         {"MASTER_PORT", "29400"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RESTART_COUNT", "0"}};
const variables slurm{{"SLURM_PROCID", "5"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_NTASKS", "10"},
                      {"SLURM_STEP_NUM_TASKS", "10"},
                      {"SLURM_STEP_ID", "2"},
                      {"SLURM_JOB_ID", "4711"},
                      {"SLURM_JOB_NODELIST", "login2,node[007-012]"},
                      {"SLURM_STEP_NODELIST", "node[008-009,011]"},
                      {"SLURM_STEP_TASKS_PER_NODE", "4(x2),2"},
                      {"SLURM_TASKS_PER_NODE", "8(x6)"},
                      {"SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1"}};
const variables slurm_batch{{"SLURM_PROCID", "0"},
                            {"SLURM_LOCALID", "0"},
                            {"SLURM_NODEID", "0"},
                            {"SLURM_NTASKS", "10"},
                            {"SLURM_JOB_ID", "4711"},
                            {"SLURM_JOB_NODELIST", "node[1-2]"},
                            {"SLURM_TASKS_PER_NODE", "5(x2)"}};
const variables open_mpi{{"OMPI_COMM_WORLD_RANK", "5"},       {"OMPI_COMM_WORLD_SIZE", "8"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"PMIX_RANK", "5"},
                         {"PMIX_NAMESPACE", "653983745"}};
const variables mpich{{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}};

struct understood {
  std::string what;
  variables environment;
  const char* launcher;
  std::optional<int> rank, world_size, local_rank, local_world_size, node_rank;
  std::optional<std::string> address;
  std::optional<std::uint16_t> port;
};
constexpr std::nullopt_t none = std::nullopt;

std::string failure_of_launch(const variables& environment) {
  const launch_environment set(environment);
  std::string text;
  CHECK(kind_of([] { return this_launch(); }, &text) == errc::missing_environment);
  return text;
}
std::string failure_of_rendezvous(const variables& environment, std::optional<int> rank = none,
                                  std::optional<int> world_size = none) {
  const launch_environment set(environment);
  std::string text;
  CHECK(kind_of([&] { return ferry::rendezvous("env://", rank, world_size, 100ms); }, &text) ==
        errc::missing_environment);
  return text;
}

}  // namespace

TEST_CASE("the environments of launchers are interpreted") {
  const std::vector<understood> table{
      {"nothing", {}, "", none, none, none, none, none, none, none},
      {"torchrun, whose own store has MASTER_PORT", torchrun, "environment", 5, 8, 1, 4, 1, "node1", 29401},
      {"torchrun at a port of the system's choice", join(torchrun, {{"MASTER_PORT", "65535"}}), "environment", 5, 8, 1,
       4, 1, "node1", 15000 + 65535 % 15000},
      {"ferry-run",
       {{"RANK", "1"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "4"},
        {"NODE_RANK", "0"},
        {"MASTER_ADDR", "[::1]"},
        {"MASTER_PORT", "4000"}},
       "environment",
       1,
       4,
       1,
       4,
       0,
       "::1",
       4000},
      {"by hand", {{"RANK", "1"}, {"WORLD_SIZE", "4"}}, "environment", 1, 4, none, none, none, none, none},
      {"empty variables count as not set",
       {{"RANK", ""}, {"WORLD_SIZE", ""}, {"MASTER_ADDR", ""}, {"LOCAL_RANK", ""}},
       "",
       none,
       none,
       none,
       none,
       none,
       none,
       none},
      {"srun", slurm, "Slurm", 5, 10, 1, 4, 1, "node008", 15000 + (16 * 4711 + 2) % 15000},
      {"srun on one node", join(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "10"}, {"SLURM_NODEID", "0"}}), "Slurm", 5, 10, 1,
       10, 0, "127.0.0.1", 15000 + (16 * 4711 + 2) % 15000},
      {"srun with a meeting point", join(slurm, {{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "4000"}}), "Slurm", 5, 10,
       1, 4, 1, "10.0.0.7", 4000},
      {"srun without lists",
       {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1"}},
       "Slurm",
       0,
       3,
       none,
       none,
       none,
       "10.1.1.1",
       none},
      {"srun with the size in SLURM_NTASKS only",
       {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "3"}},
       "Slurm",
       0,
       3,
       none,
       none,
       none,
       none,
       none},
      {"srun --mpi=pmi2", join(slurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "10"}}), "Slurm", 5, 10, 1, 4, 1, "node008",
       15000 + (16 * 4711 + 2) % 15000},
      {"srun --mpi=pmix", join(slurm, {{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "slurm.pmix.4711.2"}}), "Slurm", 5, 10, 1,
       4, 1, "node008", 15000 + (16 * 4711 + 2) % 15000},
      {"a batch script is one process, whatever it requested", slurm_batch, "", none, none, none, none, none, none,
       none},
      {"mpirun on several machines", open_mpi, "Open MPI", 5, 8, 1, 4, none, none, 29017},
      {"mpirun on one machine", join(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}}), "Open MPI", 5, 8, 1, 8, none,
       "127.0.0.1", 29017},
      {"mpirun in a Slurm allocation, whose steps are its daemons", join(slurm, open_mpi), "Open MPI", 5, 8, 1, 4, none,
       none, 29017},
      {"mpiexec of MPICH on several machines", mpich, "MPICH", 5, 8, 1, 4, none, none, none},
      {"mpiexec of MPICH on one machine", join(mpich, {{"MPI_LOCALNRANKS", "8"}}), "MPICH", 5, 8, 1, 8, none,
       "127.0.0.1", none},
      {"mpiexec of MPICH in a Slurm allocation", join(slurm, mpich), "MPICH", 5, 8, 1, 4, none, none, none},
      {"mpiexec of MPICH in a batch script", join(slurm_batch, mpich), "MPICH", 5, 8, 1, 4, none, none, none},
      {"prun, which provides no size",
       {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "653983745"}},
       "PMIx",
       2,
       none,
       none,
       none,
       none,
       none,
       29017},
      {"torchrun in a task of Slurm", join(slurm, torchrun), "environment", 5, 8, 1, 4, 1, "node1", 29401},
      {"the names of torch, filled from Slurm's, and Slurm's local rank",
       join(slurm, {{"RANK", "5"}, {"WORLD_SIZE", "10"}}), "environment", 5, 10, 1, 4, 1, "node008",
       15000 + (16 * 4711 + 2) % 15000},
      {"a WORLD_SIZE that the batch script exported", join(slurm, {{"WORLD_SIZE", "10"}, {"MASTER_ADDR", "node008"}}),
       "Slurm", 5, 10, 1, 4, 1, "node008", 15000 + (16 * 4711 + 2) % 15000},
      {"unused variables may be malformed", join(torchrun, {{"SLURM_PROCID", "x"}, {"SLURM_STEP_NUM_TASKS", "y"}}),
       "environment", 5, 8, 1, 4, 1, "node1", 29401},
  };
  for (const understood& row : table) {
    CAPTURE(row.what);
    const launch_environment set(row.environment);
    const ferry::launch_info info = this_launch();
    CHECK(info.launcher == row.launcher);
    CHECK(info.rank.value_or(-1) == row.rank.value_or(-1));
    CHECK(info.world_size.value_or(-1) == row.world_size.value_or(-1));
    CHECK(info.local_rank.value_or(-1) == row.local_rank.value_or(-1));
    CHECK(info.local_world_size.value_or(-1) == row.local_world_size.value_or(-1));
    CHECK(info.node_rank.value_or(-1) == row.node_rank.value_or(-1));
    CHECK(info.master_address.value_or("-") == row.address.value_or("-"));
    CHECK(info.master_port.value_or(0) == row.port.value_or(0));
  }
}

TEST_CASE("the first host of Slurm's lists, and the tasks on a node") {
  const std::vector<std::pair<const char*, const char*>> hosts{{"node1", "node1"},
                                                               {"node1,node2", "node1"},
                                                               {"node[01-03,7],login2", "node01"},
                                                               {"node[7,9]", "node7"},
                                                               {"login2,n[1-2]", "login2"},
                                                               {"rack[2-3]n[010-020]-ib", "rack2n010-ib"},
                                                               {"a-1.example,b", "a-1.example"}};
  for (const auto& [list, first] : hosts) {
    CAPTURE(std::string(list));
    const launch_environment set(join(slurm, {{"SLURM_STEP_NODELIST", list}}));
    CHECK(this_launch().master_address == std::string(first));
  }
  for (const char* list : {"node[01-03", "node[]", "node[-3]", "node]1[", ",node1", "[a-b]"}) {
    CAPTURE(std::string(list));
    const std::string text = failure_of_launch(join(slurm, {{"SLURM_STEP_NODELIST", list}}));
    CHECK(contains(text, "SLURM_STEP_NODELIST is '" + std::string(list) + "'"));
    CHECK(contains(text, "node[01-03,7]"));
  }
  for (const auto& [node, tasks] : std::vector<std::pair<const char*, int>>{{"0", 4}, {"1", 4}, {"2", 2}}) {
    const launch_environment set(join(slurm, {{"SLURM_NODEID", node}}));
    CHECK(this_launch().local_world_size == tasks);
  }
  for (const char* list : {"4", "4(x0),4", "4(x", "4(2),1", "four,four", "4(xx),1", "-1,4"}) {
    CAPTURE(std::string(list));
    CHECK(contains(failure_of_launch(join(slurm, {{"SLURM_STEP_TASKS_PER_NODE", list}})),
                   "SLURM_STEP_TASKS_PER_NODE is '" + std::string(list) + "'"));
  }
}

TEST_CASE("variables of launchers that are malformed or contradict each other are named with their values") {
  struct wrong {
    variables environment;
    std::vector<std::string> parts;
  };
  const std::vector<wrong> table{
      {join(slurm, {{"SLURM_PROCID", "first"}}), {"SLURM_PROCID is 'first'", "0..32767"}},
      {join(slurm, {{"MASTER_ADDR", "10.0.0.7:5"}}),
       {"MASTER_ADDR is '10.0.0.7:5'", "without scheme and port", "MASTER_PORT"}},
      {join(slurm, {{"MASTER_ADDR", "[::1]:29500"}}), {"MASTER_ADDR is '[::1]:29500'", "without scheme and port"}},
      {join(slurm, {{"MASTER_ADDR", "tcp://node1"}}), {"MASTER_ADDR is 'tcp://node1'", "without scheme and port"}},
      {join(slurm, {{"SLURM_STEP_NUM_TASKS", "0"}}), {"SLURM_STEP_NUM_TASKS is '0'", "1..32768"}},
      {join(slurm, {{"SLURM_PROCID", "10"}}), {"SLURM_PROCID='10'", "SLURM_STEP_NUM_TASKS='10'"}},
      {join(slurm, {{"SLURM_JOB_ID", "4711_3"}}), {"SLURM_JOB_ID is '4711_3'"}},
      {join(slurm, {{"SLURM_STEP_ID", "-1"}}), {"SLURM_STEP_ID is '-1'"}},
      {join(slurm, {{"SLURM_LOCALID", "4"}}), {"SLURM_LOCALID='4'", "4 workers"}},
      {join(slurm, {{"SLURM_NODEID", "-"}}), {"SLURM_NODEID is '-'"}},
      {join(open_mpi, {{"OMPI_COMM_WORLD_RANK", "5.0"}}), {"OMPI_COMM_WORLD_RANK is '5.0'"}},
      {join(open_mpi, {{"OMPI_COMM_WORLD_SIZE", "40000"}}), {"OMPI_COMM_WORLD_SIZE is '40000'"}},
      {join(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "many"}}), {"OMPI_COMM_WORLD_LOCAL_SIZE is 'many'"}},
      {join(mpich, {{"PMI_SIZE", "5"}}), {"PMI_RANK='5'", "PMI_SIZE='5'"}},
      {join(mpich, {{"MPI_LOCALRANKID", "x"}}), {"MPI_LOCALRANKID is 'x'"}},
      {join(torchrun, {{"LOCAL_RANK", "-1"}}), {"LOCAL_RANK is '-1'"}},
      {join(torchrun, {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK='4'"}},
      {join(torchrun, {{"GROUP_RANK", "x"}}), {"GROUP_RANK is 'x'"}},
      {join(torchrun, {{"MASTER_PORT", "http"}}), {"MASTER_PORT is 'http'", "0..65535"}},
      {join(torchrun, {{"RANK", "8"}}), {"RANK='8'", "WORLD_SIZE='8'"}},
      // Half of it set by hand: the other half would belong to another group.
      {join(slurm, {{"WORLD_SIZE", "4"}}), {"WORLD_SIZE='4'", "SLURM_STEP_NUM_TASKS='10'", "both"}},
      {join(slurm, {{"RANK", "0"}}), {"RANK='0'", "SLURM_PROCID='5'", "both"}},
      {join(open_mpi, {{"RANK", "0"}}), {"RANK='0'", "OMPI_COMM_WORLD_RANK='5'", "Open MPI"}},
  };
  for (const wrong& row : table) {
    CAPTURE(row.parts.front());
    const std::string text = failure_of_launch(row.environment);
    CAPTURE(text);
    for (const std::string& part : row.parts) CHECK(contains(text, part));
    CHECK(failure_of_rendezvous(row.environment) == text);
  }
}

TEST_CASE("a variable that env:// needs and that is not set is named, with a remedy") {
  const std::string nothing = failure_of_rendezvous({});
  CAPTURE(nothing);
  for (const char* part : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK",
                           "ferry-run -n COUNT PROGRAM", "MASTER_ADDR", "MASTER_PORT", "tcp://"})
    CHECK(contains(nothing, part));
  CHECK(contains(failure_of_rendezvous(slurm_batch), "srun PROGRAM"));
  CHECK(contains(failure_of_rendezvous({{"RANK", "0"}}), "WORLD_SIZE is not set"));
  CHECK(contains(failure_of_rendezvous({{"WORLD_SIZE", "2"}}), "RANK is not set"));
  CHECK(contains(failure_of_rendezvous({{"PMIX_RANK", "2"}}), "WORLD_SIZE is not set"));
  CHECK(contains(failure_of_rendezvous({}, 0, 1), "MASTER_ADDR is not set"));
  const std::string far = failure_of_rendezvous(open_mpi);
  CHECK(contains(far, "MASTER_ADDR is not set"));
  CHECK(contains(far, "mpirun -x MASTER_ADDR=HOST"));
  CHECK(contains(failure_of_rendezvous(mpich), "MASTER_ADDR is not set"));
  const std::string no_port = failure_of_rendezvous(join(mpich, {{"MPI_LOCALNRANKS", "8"}}));
  CHECK(contains(no_port, "MASTER_PORT is not set"));
  CHECK(contains(no_port, "-genv MASTER_PORT PORT"));
}

TEST_CASE("a rank or world size from the program is not looked up in the environment") {
  const variables place{{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "0"}};
  const launch_environment set(join(place, {{"RANK", "7"}, {"WORLD_SIZE", "no number"}}));
  const auto met = ferry::rendezvous("env://", 0, 1);
  CHECK(met.rank == 0);
  CHECK(met.world_size == 1);
}

}  // namespace launch_test
