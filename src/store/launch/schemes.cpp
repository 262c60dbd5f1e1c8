// The built-in schemes of init methods.

#include <ferry/store/store_traits.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/store/file_store.hpp>
#include <ferry/store/tcp_store.hpp>

#include "../../base/net/socket_address.hpp"
#include "init_method.hpp"
#include "launchers.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

timeout left_of(deadline until) {
  if (until.is_never()) return no_timeout;
  // Zero would mean no timeout.
  return std::max(until.remaining(), std::chrono::nanoseconds(1));
}

void refuse_query(const rendezvous_request& request) {
  if (request.query.empty()) return;
  throw_error(errc::bad_init_method,
              fmt::format("unknown parameter '{}' in init method '{}'; known are rank, world_size",
                          request.query.begin()->first, request.init_method));
}

}  // namespace
}  // namespace detail

void store_traits<tcp_scheme>::resolve(rendezvous_request& request) {
  const detail::host_port at = detail::parse_host_port(request.location, request.init_method);
  detail::refuse_query(request);
  if (at.port == 0 && request.world_size != 1) {
    throw_error(errc::bad_init_method,
                fmt::format("port 0 in init method '{}': any free port works only for a group of one worker, since the "
                            "others could not find it",
                            request.init_method));
  }
}

std::shared_ptr<store> store_traits<tcp_scheme>::open(const rendezvous_request& request) {
  const detail::host_port at = detail::parse_host_port(request.location, request.init_method);
  std::shared_ptr<tcp_store_server> server;
  if (request.rank == 0) {
    server = tcp_store_server::listen(
        at.host, at.port, {}, {.secret = request.secret, .allow_unauthenticated = request.allow_unauthenticated});
  }
  return std::make_shared<tcp_store>(tcp_store_options{.host = at.host,
                                                       .port = at.port,
                                                       .server = std::move(server),
                                                       .limit = detail::left_of(request.until),
                                                       .secret = request.secret});
}

void store_traits<env_scheme>::resolve(rendezvous_request& request) {
  if (!request.location.empty()) {
    throw_error(errc::bad_init_method, fmt::format("'{}' in init method '{}': env:// takes everything from the "
                                                   "environment",
                                                   request.location, request.init_method));
  }
  detail::refuse_query(request);
  const detail::launch_request requested{.rank = !request.rank && !request.any_rank,
                                         .world_size = !request.world_size && !request.dynamic};
  const launch_info info = detail::required_launch(requested);
  if (requested.rank) request.rank = info.rank;
  if (requested.world_size) request.world_size = info.world_size;
  const detail::launch_meeting at = detail::meeting_of(info);
  request.location = detail::host_and_port(at.host, at.port);
  log(log_level::info, fmt::format("env:// of {}: rank 0 serves the store at {}",
                                   info.launcher.empty() ? "the environment" : info.launcher, request.location));
  store_traits<tcp_scheme>::resolve(request);
}

std::shared_ptr<store> store_traits<env_scheme>::open(const rendezvous_request& request) {
  return store_traits<tcp_scheme>::open(request);
}

void store_traits<file_scheme>::resolve(rendezvous_request& request) {
  detail::refuse_query(request);
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
  return std::make_shared<file_store>(request.location, detail::left_of(request.until));
}

}  // namespace ferry::inline v0
