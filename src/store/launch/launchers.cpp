#include "launchers.hpp"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>

#include "init_method.hpp"
#include "slurm_lists.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

/// An environment variable with a non-empty value; launchers and scripts empty variables to unset them.
struct variable {
  const char* name = nullptr;
  std::string value;
  explicit operator bool() const noexcept { return name != nullptr; }
  [[nodiscard]] std::string spelled() const { return fmt::format("{}='{}'", name, value); }
};

variable first_set(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): documented for the caller
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return {name, value};
  }
  return {};
}

[[noreturn]] void refuse(const variable& found, std::string_view expected) {
  throw_error(errc::missing_environment,
              fmt::format("environment variable {} is '{}', which is not {}", found.name, found.value, expected));
}

std::optional<int> number(const variable& found, int least, int most) {
  if (!found) return std::nullopt;
  const auto value = detail::parse_number(found.value);
  if (!value || *value < least || *value > most) refuse(found, fmt::format("a number in {}..{}", least, most));
  return value;
}

/// The variables that one launcher sets for this process.
struct launcher_variables {
  const char* launcher = nullptr;
  variable rank;
  variable world_size;
  variable local_rank;
  variable local_world_size;
  variable node_rank;
  explicit operator bool() const noexcept { return rank || world_size; }
};

bool same_number(const variable& one, const variable& other) {
  const auto value = detail::parse_number(one.value);
  return value && value == detail::parse_number(other.value);
}
/// Whether the two do not contradict each other.
bool agree(const launcher_variables& one, const launcher_variables& other) {
  return (!one.rank || !other.rank || same_number(one.rank, other.rank)) &&
         (!one.world_size || !other.world_size || same_number(one.world_size, other.world_size));
}

launcher_variables by_name() {
  return {"environment",
          first_set({"RANK"}),
          first_set({"WORLD_SIZE"}),
          first_set({"LOCAL_RANK"}),
          first_set({"LOCAL_WORLD_SIZE"}),
          first_set({"GROUP_RANK", "NODE_RANK"})};
}
launcher_variables by_open_mpi() {
  return {"Open MPI",
          first_set({"OMPI_COMM_WORLD_RANK"}),
          first_set({"OMPI_COMM_WORLD_SIZE"}),
          first_set({"OMPI_COMM_WORLD_LOCAL_RANK"}),
          first_set({"OMPI_COMM_WORLD_LOCAL_SIZE"}),
          {}};
}
launcher_variables by_mpich() {
  return {"MPICH",
          first_set({"PMI_RANK"}),
          first_set({"PMI_SIZE"}),
          first_set({"MPI_LOCALRANKID", "PMI_LOCAL_RANK"}),
          first_set({"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}),
          {}};
}
launcher_variables by_pmix() { return {"PMIx", first_set({"PMIX_RANK"}), {}, {}, {}, {}}; }
launcher_variables by_slurm() {
  // A batch script, too, has SLURM_PROCID and SLURM_NTASKS, but is one process: only the variables of a step count.
  variable tasks = first_set({"SLURM_STEP_NUM_TASKS"});
  if (!tasks && first_set({"SLURM_STEP_ID"})) tasks = first_set({"SLURM_NTASKS"});
  if (!tasks) return {};
  return {"Slurm", first_set({"SLURM_PROCID"}), tasks, first_set({"SLURM_LOCALID"}), {}, first_set({"SLURM_NODEID"})};
}

/// The launcher that started this process directly. An MPI job inside a Slurm allocation runs in steps in which Slurm
/// counts the MPI's daemons: then Slurm's numbers are not those of the workers, and differ. srun also sets the
/// variables of PMI and PMIx if configured to: then they are the same.
launcher_variables by_launcher() {
  if (launcher_variables open_mpi = by_open_mpi(); open_mpi.rank) return open_mpi;
  const launcher_variables mpich = by_mpich();
  const launcher_variables pmix = by_pmix();
  const launcher_variables slurm = by_slurm();
  if (slurm.rank && agree(slurm, mpich) && agree(slurm, pmix)) return slurm;
  if (mpich.rank) return mpich;
  if (pmix.rank) return pmix;
  return {};
}

bool is(const launcher_variables& who, std::string_view launcher) { return who && who.launcher == launcher; }

std::optional<int> slurm_tasks_here(const variable& node) {
  const variable list = first_set({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (!list || !node) return std::nullopt;
  const auto here = detail::repeated_number(list.value, number(node, 0, worker_id::max).value());
  if (!here) refuse(list, fmt::format("a list like 4(x2),3 with an entry for {}", node.spelled()));
  return here;
}

/// The host of Slurm's task 0, which the usual distributions place on the first node.
std::optional<std::string> slurm_first_host() {
  if (const variable list = first_set({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})) {
    const auto host = detail::first_host(list.value);
    if (!host) refuse(list, "a list of hosts like node[01-03,7],login2");
    return host;
  }
  if (const variable launching = first_set({"SLURM_LAUNCH_NODE_IPADDR"})) return launching.value;
  return std::nullopt;
}

// Linux assigns ephemeral ports from here on; derived ports are below.
constexpr int first_ephemeral_port = 32768;
constexpr unsigned first_derived_port = 15000;
constexpr unsigned derived_ports = 15000;

std::optional<std::uint16_t> slurm_port() {
  const variable job = first_set({"SLURM_JOB_ID", "SLURM_JOBID"});
  if (!job) return std::nullopt;
  const variable step = first_set({"SLURM_STEP_ID", "SLURM_STEPID"});
  constexpr int most = 2147483647;
  const auto job_number = static_cast<std::uint64_t>(number(job, 0, most).value());
  // Slurm's own numbers of interactive and batch steps are the highest of 32 bits.
  const auto step_number = step ? detail::parse_number<std::uint32_t>(step.value) : 0;
  if (!step_number) refuse(step, "a number of 32 bits");
  return static_cast<std::uint16_t>(first_derived_port + (16 * job_number + *step_number) % derived_ports);
}

std::optional<std::uint16_t> pmix_port() {
  const variable job = first_set({"PMIX_NAMESPACE"});
  if (!job) return std::nullopt;
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char byte : job.value) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  return static_cast<std::uint16_t>(first_derived_port + hash % derived_ports);
}

std::optional<std::string> master_address(const launcher_variables& launcher, std::optional<int> local_world_size) {
  if (variable given = first_set({"MASTER_ADDR"})) {
    const auto colons = std::count(given.value.begin(), given.value.end(), ':');
    const bool open = given.value.starts_with('[') && !given.value.ends_with(']');
    if (colons == 1 || open || given.value.find_first_of("/@ \t\n") != given.value.npos)
      refuse(given, "a host name or an IP address, without scheme and port (the port is MASTER_PORT)");
    if (!given.value.starts_with('[') || !given.value.ends_with(']')) return given.value;
    if (given.value.size() <= 2) refuse(given, "a host name or an IP address");
    return given.value.substr(1, given.value.size() - 2);
  }
  if (!launcher) return std::nullopt;
  if (local_world_size && local_world_size == number(launcher.world_size, 1, worker_id::max + 1)) return "127.0.0.1";
  if (is(launcher, "Slurm")) return slurm_first_host();
  return std::nullopt;
}

std::optional<std::uint16_t> master_port(const launcher_variables& launcher) {
  if (const variable given = first_set({"MASTER_PORT"})) {
    const int port = number(given, 0, 65535).value();
    // torchrun runs its own store at MASTER_PORT, with another protocol.
    if (first_set({"TORCHELASTIC_USE_AGENT_STORE"}).value != "True") return static_cast<std::uint16_t>(port);
    if (port < first_ephemeral_port) return static_cast<std::uint16_t>(port + 1);
    // The system picked this port for torchrun: the next one may be in use by any program.
    return static_cast<std::uint16_t>(first_derived_port + port % derived_ports);
  }
  if (is(launcher, "Slurm")) return slurm_port();
  if (is(launcher, "Open MPI") || is(launcher, "PMIx")) return pmix_port();
  return std::nullopt;
}

constexpr std::string_view how_to_start =
    "start with ferry-run -n COUNT PROGRAM; or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; or use "
    "tcp://host:port "
    "with a rank and a world size";

[[noreturn]] void nothing_found() {
  std::string text =
      "env:// found no launcher in the environment; it looked for RANK and WORLD_SIZE (ferry-run, torchrun), "
      "OMPI_COMM_WORLD_RANK (Open MPI), SLURM_PROCID with SLURM_STEP_NUM_TASKS (srun), PMI_RANK (MPICH) and "
      "PMIX_RANK; ";
  if (const variable job = first_set({"SLURM_JOB_ID"})) {
    text += fmt::format("{} means a Slurm allocation, in which srun PROGRAM starts the workers; ", job.spelled());
  }
  text += how_to_start;
  throw_error(errc::missing_environment, std::move(text));
}

[[noreturn]] void missing(const char* name, const variable& although) {
  throw_error(errc::missing_environment,
              fmt::format("environment variable {} is not set, which env:// needs beside {}; {}", name,
                          although.spelled(), how_to_start));
}

launch_info read(detail::launch_request requested, bool demanded) {
  const launcher_variables named = by_name();
  launcher_variables launcher = by_launcher();
  const bool lacking = (requested.rank && !named.rank) || (requested.world_size && !named.world_size);
  if (named && launcher && !agree(named, launcher)) {
    if (lacking) {
      const bool ranks = named.rank && launcher.rank;
      throw_error(errc::missing_environment,
                  fmt::format("{} contradicts {} of {}: set both RANK and WORLD_SIZE, or neither",
                              (ranks ? named.rank : named.world_size).spelled(),
                              (ranks ? launcher.rank : launcher.world_size).spelled(), launcher.launcher));
    }
    launcher = {};  // it started the program that started this one
  }
  if (demanded && lacking && !named && !launcher) nothing_found();

  const variable& rank = named.rank ? named.rank : launcher.rank;
  const variable& world_size = named.world_size ? named.world_size : launcher.world_size;
  if (demanded && requested.rank && !rank) missing("RANK", world_size);
  if (demanded && requested.world_size && !world_size) missing("WORLD_SIZE", rank);

  launch_info info;
  if (launcher && !(named.rank && named.world_size)) {
    info.launcher = launcher.launcher;
  } else if (named) {
    info.launcher = named.launcher;
  }
  if (requested.rank) info.rank = number(rank, 0, worker_id::max);
  if (requested.world_size) info.world_size = number(world_size, 1, worker_id::max + 1);
  if (info.rank && info.world_size && *info.rank >= *info.world_size) {
    throw_error(errc::missing_environment,
                fmt::format("{} contradicts {}: ranks start at 0", rank.spelled(), world_size.spelled()));
  }
  const auto either = [&](variable launcher_variables::*what) { return named.*what ? named.*what : launcher.*what; };
  const variable local_rank = either(&launcher_variables::local_rank);
  info.local_rank = number(local_rank, 0, worker_id::max);
  const auto launched_here = is(launcher, "Slurm") ? slurm_tasks_here(launcher.node_rank)
                                                   : number(launcher.local_world_size, 1, worker_id::max + 1);
  info.local_world_size =
      named.local_world_size ? number(named.local_world_size, 1, worker_id::max + 1) : launched_here;
  if (info.local_rank && info.local_world_size && *info.local_rank >= *info.local_world_size) {
    throw_error(errc::missing_environment,
                fmt::format("{} contradicts the {} workers on this machine: local ranks start "
                            "at 0",
                            local_rank.spelled(), *info.local_world_size));
  }
  info.node_rank = number(either(&launcher_variables::node_rank), 0, worker_id::max);
  info.master_address = master_address(launcher, launched_here);
  info.master_port = master_port(launcher);
  return info;
}

}  // namespace

launch_info required_launch(launch_request requested) { return read(requested, true); }

launch_meeting meeting_of(const launch_info& info) {
  const char* lacking = !info.master_address ? "MASTER_ADDR" : !info.master_port ? "MASTER_PORT" : nullptr;
  if (lacking == nullptr) return {*info.master_address, *info.master_port};
  std::string how(how_to_start);
  if (info.launcher == "Open MPI") {
    how =
        "on several machines, or with PMIX_NAMESPACE unset, mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=PORT says where "
        "rank 0 runs and a port that is free there";
  } else if (info.launcher == "MPICH") {
    how =
        "mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT PORT says where rank 0 runs (not needed on one machine) and "
        "a "
        "port that is free there";
  } else if (info.launcher == "Slurm" || info.launcher == "PMIx") {
    how = "set it to where rank 0 runs, or to a port that is free there";
  }
  throw_error(errc::missing_environment,
              fmt::format("environment variable {} is not set, which env:// needs{}; {}", lacking,
                          info.launcher == "environment" || info.launcher.empty()
                              ? std::string()
                              : fmt::format(" and {} does not provide", info.launcher),
                          how));
}

}  // namespace detail

launch_info this_launch() { return detail::read({.rank = true, .world_size = true}, false); }

}  // namespace ferry::inline v0
