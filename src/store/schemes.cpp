// The built-in schemes of init methods.

#include <ferry/store/store_traits.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/store/file_store.hpp>
#include <ferry/store/tcp_store.hpp>

#include "init_method.hpp"
#include "net_address.hpp"

namespace ferry::inline v0 {
namespace {

timeout left_of(deadline until) {
  if (until.is_never()) return no_timeout;
  // Zero would mean never.
  return std::max(until.remaining(), std::chrono::nanoseconds(1));
}

void refuse_query(const rendezvous_request& request) {
  if (request.query.empty()) return;
  throw_error(errc::bad_init_method,
              fmt::format("unknown parameter '{}' in init method '{}'; known are rank, world_size",
                          request.query.begin()->first, request.init_method));
}

std::string needed_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    throw_error(errc::missing_environment,
                fmt::format("environment variable {} is not set, which env:// needs; launchers "
                            "set it, or use tcp://host:port with a rank and a world size",
                            name));
  }
  return value;
}

int to_number(const char* name, const std::string& value, int least, int most) {
  const auto number = detail::parse_number(value);
  if (!number || *number < least || *number > most) {
    throw_error(
        errc::missing_environment,
        fmt::format("environment variable {} is '{}', which is not a number in {}..{}", name, value, least, most));
  }
  return *number;
}

// Launchers that say who a process is in words of their own: rank and world size, believed only together.
constexpr std::array<std::array<const char*, 2>, 3> launchers = {{
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"PMI_RANK", "PMI_SIZE"},
}};

// The value of RANK or WORLD_SIZE, or what the launcher calls it.
int from_environment(const char* name, std::size_t which, int least, int most) {
  if (std::getenv("RANK") == nullptr && std::getenv("WORLD_SIZE") == nullptr) {
    for (const auto& launcher : launchers) {
      if (std::getenv(launcher[0]) == nullptr || std::getenv(launcher[1]) == nullptr) continue;
      return to_number(launcher[which], needed_variable(launcher[which]), least, most);
    }
  }
  return to_number(name, needed_variable(name), least, most);
}

}  // namespace

void store_traits<tcp_scheme>::resolve(rendezvous_request& request) {
  const detail::host_port at = detail::parse_host_port(request.location, request.init_method);
  refuse_query(request);
  if (at.port == 0 && request.world_size != 1) {
    throw_error(
        errc::bad_init_method,
        fmt::format("port 0 in init method '{}': any free port is only of use to a group of one worker, since the "
                    "others could not find it",
                    request.init_method));
  }
}

std::shared_ptr<store> store_traits<tcp_scheme>::open(const rendezvous_request& request) {
  const detail::host_port at = detail::parse_host_port(request.location, request.init_method);
  std::shared_ptr<tcp_store_server> server;
  if (request.rank == 0) server = tcp_store_server::listen(at.host, at.port);
  return std::make_shared<tcp_store>(tcp_store_options{
      .host = at.host, .port = at.port, .server = std::move(server), .limit = left_of(request.until)});
}

void store_traits<env_scheme>::resolve(rendezvous_request& request) {
  if (!request.location.empty()) {
    throw_error(errc::bad_init_method, fmt::format("'{}' in init method '{}': env:// takes everything from the "
                                                   "environment",
                                                   request.location, request.init_method));
  }
  refuse_query(request);
  if (!request.rank) request.rank = from_environment("RANK", 0, 0, 32767);
  if (!request.world_size && !request.dynamic) request.world_size = from_environment("WORLD_SIZE", 1, 1, 32768);
  std::string host = needed_variable("MASTER_ADDR");
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  int port = to_number("MASTER_PORT", needed_variable("MASTER_PORT"), 0, 65535);
  // torchrun keeps a store of its own at MASTER_PORT, in another protocol.
  const char* agent_store = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  if (agent_store != nullptr && std::string_view(agent_store) == "True") {
    port = port == 65535 ? 1024 : port + 1;
    log(log_level::info, fmt::format("MASTER_PORT belongs to torchrun's own store: using port {}", port));
  }
  request.location = detail::host_and_port(host, static_cast<std::uint16_t>(port));
  store_traits<tcp_scheme>::resolve(request);
}

std::shared_ptr<store> store_traits<env_scheme>::open(const rendezvous_request& request) {
  return store_traits<tcp_scheme>::open(request);
}

void store_traits<file_scheme>::resolve(rendezvous_request& request) {
  refuse_query(request);
  if (request.location.empty() || request.location == "/") {
    throw_error(errc::bad_init_method,
                fmt::format("path missing in init method '{}': it has the form file:///path", request.init_method));
  }
  if (!request.location.starts_with('/')) {
    throw_error(errc::bad_init_method,
                fmt::format("the path '{}' in init method '{}' is not absolute: write file:///{}", request.location,
                            request.init_method, request.location));
  }
}

std::shared_ptr<store> store_traits<file_scheme>::open(const rendezvous_request& request) {
  return std::make_shared<file_store>(request.location, left_of(request.until));
}

}  // namespace ferry::inline v0
