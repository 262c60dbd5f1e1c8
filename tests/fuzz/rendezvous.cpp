// Init methods and the variables that launchers set. Input: u8 how many variables, for each an u8 which and its value up to
// the next line end, then the init method.

#include <array>
#include <cstdlib>
#include <string>

#include <ferry/base/ids.hpp>
#include <ferry/store/hash_store.hpp>
#include <ferry/store/launch.hpp>
#include <ferry/store/rendezvous.hpp>

#include "store/launch/init_method.hpp"
#include "store/launch/slurm_lists.hpp"
#include "targets.hpp"

namespace fuzz {
namespace rendezvous_target {
namespace {

constexpr std::array variables = {"RANK",
                                  "WORLD_SIZE",
                                  "MASTER_ADDR",
                                  "MASTER_PORT",
                                  "SLURM_PROCID",
                                  "SLURM_STEP_NUM_TASKS",
                                  "OMPI_COMM_WORLD_RANK",
                                  "OMPI_COMM_WORLD_SIZE",
                                  "PMI_RANK",
                                  "PMI_SIZE",
                                  "TORCHELASTIC_USE_AGENT_STORE",
                                  "LOCAL_RANK",
                                  "LOCAL_WORLD_SIZE",
                                  "GROUP_RANK",
                                  "SLURM_STEP_NODELIST",
                                  "SLURM_STEP_TASKS_PER_NODE",
                                  "SLURM_NODEID",
                                  "SLURM_LOCALID",
                                  "SLURM_JOB_ID",
                                  "SLURM_STEP_ID",
                                  "PMIX_RANK",
                                  "PMIX_NAMESPACE",
                                  "OMPI_COMM_WORLD_LOCAL_RANK",
                                  "OMPI_COMM_WORLD_LOCAL_SIZE"};

// Everything up to the point where a store would be opened.
std::shared_ptr<ferry::store> open_nothing(const ferry::rendezvous_request& request) {
  require(request.rank && *request.rank >= 0 && *request.rank <= ferry::worker_id::max, "ranks are in their range");
  require(request.world_size || request.dynamic, "the size of the group is known");
  if (request.world_size) require(*request.rank < *request.world_size, "a rank is below the world's size");
  return std::make_shared<ferry::hash_store>();
}

void run(bytes input) {
  source from(input);
  std::string_view text = text_of(from.rest());
  const auto take = [&](std::size_t count) {
    const std::string_view part = text.substr(0, count);
    text.remove_prefix(part.size());
    return part;
  };
  for (const char* each : variables) ::unsetenv(each);
  const std::string_view head = take(1);
  const unsigned count = head.empty() ? 0 : static_cast<unsigned char>(head[0]) % 16;
  const bool dynamic = !head.empty() && (static_cast<unsigned char>(head[0]) & 0x80U) != 0;
  for (unsigned i = 0; i != count; ++i) {
    const std::string_view which = take(1);
    if (which.empty()) break;
    const std::string value(take(text.find('\n')));
    take(1);
    ::setenv(variables[static_cast<unsigned char>(which[0]) % variables.size()], value.c_str(), 1);
  }
  static const auto schemes = [] {
    std::vector<ferry::detail::store_scheme> all(ferry::builtin_stores::schemes.begin(),
                                                 ferry::builtin_stores::schemes.end());
    for (auto& each : all) each.open = &open_nothing;
    return all;
  }();
  accepted([&] {
    const auto result = ferry::detail::rendezvous_with(schemes, {.init_method = std::string(text), .dynamic = dynamic});
    require(result.store != nullptr, "there is a store");
  });
  accepted([&] {
    const auto parts = ferry::detail::parse_init_method(std::string(text), "");
    if (parts.scheme != "tcp") return;
    const auto at = ferry::detail::parse_host_port(parts.location, "");
    require(!at.host.empty(), "a host is named");
  });
  accepted([&] {
    const ferry::launch_info info = ferry::this_launch();
    require(!info.rank || !info.world_size || *info.rank < *info.world_size, "a rank is below the world's size");
    require(!info.local_rank || !info.local_world_size || *info.local_rank < *info.local_world_size,
            "a local rank is below the number of workers on the machine");
    require(!info.master_address || !info.master_address->empty(), "an address is not empty");
  });
  for (const char* each : variables) ::unsetenv(each);
  const std::string list(text);
  if (const auto host = ferry::detail::first_host(list)) require(!host->empty(), "a host has a name");
  if (const auto number = ferry::detail::repeated_number(list, 3)) require(*number >= 0, "a number of tasks");
}

void seeds(const seed_sink& sink) {
  const auto add = [&](std::string_view name, std::initializer_list<std::pair<std::uint8_t, std::string_view>> set,
                       std::string_view method) {
    seed out;
    out.number(static_cast<std::uint8_t>(set.size()));
    for (const auto& [which, value] : set) out.number(which).add(value).add("\n");
    sink(name, out.add(method));
  };
  add("env", {{0, "0"}, {1, "4"}, {2, "10.0.0.1"}, {3, "29500"}}, "env://");
  add("env-query", {{2, "[fe80::1%eth0]"}, {3, "29500"}}, "env://?rank=3&world_size=4");
  add("slurm", {{4, "1"}, {5, "2"}, {2, "node0"}, {3, "1"}}, "");
  add("slurm-lists",
      {{4, "5"}, {5, "7"}, {14, "node[01-03,7],login2"}, {15, "4(x1),3"}, {16, "1"}, {17, "1"}, {18, "77"}, {19, "2"}},
      "env://");
  add("pmix", {{20, "1"}, {1, "2"}, {21, "job"}, {2, "a"}}, "env://");
  add("open-mpi-local", {{6, "1"}, {7, "2"}, {22, "1"}, {23, "2"}, {21, "job"}}, "env://");
  add("first-host", {}, "node[01-03,7],login2");
  add("repeated-number", {}, "4(x2),3(x9)");
  add("open-mpi", {{6, "1"}, {7, "2"}, {2, "node0"}, {3, "0"}}, "env://");
  add("mpich", {{8, "0"}, {9, "1"}, {2, "::1"}, {3, "0"}}, "env://");
  add("torchrun", {{0, "0"}, {1, "1"}, {2, "localhost"}, {3, "65535"}, {10, "True"}}, "env://");
  add("tcp", {}, "tcp://127.0.0.1:29500/?rank=0&world_size=2");
  add("tcp6", {}, "tcp://[::1]:29500?rank=1&world_size=2");
  add("file", {}, "file:///tmp/store?rank=0&world_size=1");
}

}  // namespace
}  // namespace rendezvous_target

const target rendezvous{"rendezvous", &rendezvous_target::run, &rendezvous_target::seeds};

}  // namespace fuzz
