#include <ferry/backend/options.hpp>
#include <ferry/base/error.hpp>

#include <string_view>

#include <fmt/format.h>

#include "../../base/authentication.hpp"
#include "../../transport/shm/shared_rings.hpp"

namespace ferry::inline v0 {

void rpc_options::check() const {
  if (!rpc_timeout.is_set()) throw_error(errc::invalid_argument, "rpc_timeout must be a duration or no_timeout");
  if (num_worker_threads < 1) {
    throw_error(errc::invalid_argument, fmt::format("num_worker_threads must be positive, not {}", num_worker_threads));
  }
  if (max_blocked_handlers < 1) {
    throw_error(errc::invalid_argument,
                fmt::format("max_blocked_handlers must be positive, not {}", max_blocked_handlers));
  }
  flow.check();
  if (!heartbeat_interval.is_set()) {
    throw_error(errc::invalid_argument, "heartbeat_interval must be a duration, or no_timeout for no heartbeats");
  }
  if (!heartbeat_interval.is_never() &&
      (!lease.is_set() || lease.is_never() || lease.duration() / 5 < heartbeat_interval.duration())) {
    throw_error(errc::invalid_argument,
                "lease must be a duration of at least five times heartbeat_interval (to disable the detection of "
                "silent workers, set heartbeat_interval = no_timeout)");
  }
  constexpr int most_flight_events = 1 << 24;
  if (flight_events < 0 || flight_events > most_flight_events) {
    throw_error(errc::invalid_argument,
                fmt::format("flight_events must be in 0..{}, not {}", most_flight_events, flight_events));
  }
  if (max_observers < 0)
    throw_error(errc::invalid_argument, fmt::format("max_observers must not be negative, but is {}", max_observers));
  if (transport.port_last != 0 && transport.port_last < transport.port) {
    throw_error(errc::invalid_argument,
                fmt::format("the port range {}..{} is empty", transport.port, transport.port_last));
  }
  if (transport.max_spin.count() < 0) throw_error(errc::invalid_argument, "transport.max_spin must not be negative");
  if (transport.busy_poll < 0) throw_error(errc::invalid_argument, "transport.busy_poll must not be negative");
  if (transport.handshake_timeout.count() <= 0)
    throw_error(errc::invalid_argument, "transport.handshake_timeout must be positive");
  if (transport.max_handshakes == 0) throw_error(errc::invalid_argument, "transport.max_handshakes must not be zero");
  if (transport.max_connections == 0) throw_error(errc::invalid_argument, "transport.max_connections must not be zero");
  if (transport.device_timeout.count() <= 0)
    throw_error(errc::invalid_argument, "transport.device_timeout must be positive");
  if (transport.shm_ring_bytes != 0 && !detail::is_ring_size(transport.shm_ring_bytes)) {
    throw_error(errc::invalid_argument,
                fmt::format("transport.shm_ring_bytes must be 0 or a power of two from {} to {}, not {}",
                            detail::smallest_ring, detail::largest_ring, transport.shm_ring_bytes));
  }
  if (secret.size() > detail::longest_secret) {
    throw_error(errc::invalid_argument,
                fmt::format("the secret has {} bytes, more than {}", secret.size(), detail::longest_secret));
  }
  if (!secret.empty() && !transport.secret.empty() && secret != transport.secret)
    throw_error(errc::invalid_argument, "secret and transport.secret differ; set secret alone");
  detail::check_secret_usable(secret.empty() ? transport.secret : secret);
  detail::check_device_options(device_maps, devices);
}

rpc_options worker_config::options() const {
  if (metadata.size() > max_metadata) {
    throw_error(errc::invalid_argument,
                fmt::format("worker_config::metadata has {} bytes, more than {}", metadata.size(), max_metadata));
  }
  rpc_options result;
  result.rpc_timeout = rpc_timeout;
  result.init_method = init_method;
  result.num_worker_threads = num_worker_threads;
  result.max_blocked_handlers = max_blocked_handlers;
  result.flow = flow;
  result.heartbeat_interval = heartbeat_interval;
  result.lease = lease;
  result.flight_events = flight_events;
  result.flight_directory = flight_directory;
  result.record_on_timeout = record_on_timeout;
  result.max_observers = max_observers;
  result.transports = transports;
  result.transport = transport;
  result.secret = secret;
  result.allow_unauthenticated = allow_unauthenticated;
  result.device_maps = device_maps;
  result.devices = devices;
  result.check();
  return result;
}

namespace detail {
namespace {

template <class T>
void reconcile_one(std::string_view name, T& in_config, T& in_options, const T& usual) {
  if (in_config == in_options) return;
  if (in_options == usual) {
    in_options = in_config;
  } else if (in_config == usual) {
    in_config = in_options;
  } else {
    throw_error(
        errc::invalid_argument,
        fmt::format("{} is set to different values in the worker_config and in the backend's options; set it in "
                    "one of them",
                    name));
  }
}

}  // namespace

void reconcile(worker_config& config, rpc_options& options) {
  const rpc_options usual;
  reconcile_one("rpc_timeout", config.rpc_timeout, options.rpc_timeout, usual.rpc_timeout);
  reconcile_one("init_method", config.init_method, options.init_method, usual.init_method);
  reconcile_one("num_worker_threads", config.num_worker_threads, options.num_worker_threads, usual.num_worker_threads);
  reconcile_one("max_blocked_handlers", config.max_blocked_handlers, options.max_blocked_handlers,
                usual.max_blocked_handlers);
  reconcile_one("flow", config.flow, options.flow, usual.flow);
  reconcile_one("heartbeat_interval", config.heartbeat_interval, options.heartbeat_interval, usual.heartbeat_interval);
  reconcile_one("lease", config.lease, options.lease, usual.lease);
  reconcile_one("flight_events", config.flight_events, options.flight_events, usual.flight_events);
  reconcile_one("flight_directory", config.flight_directory, options.flight_directory, usual.flight_directory);
  reconcile_one("record_on_timeout", config.record_on_timeout, options.record_on_timeout, usual.record_on_timeout);
  reconcile_one("max_observers", config.max_observers, options.max_observers, usual.max_observers);
  reconcile_one("transports", config.transports, options.transports, usual.transports);
  reconcile_one("transport", config.transport, options.transport, usual.transport);
  reconcile_one("secret", config.secret, options.secret, usual.secret);
  reconcile_one("allow_unauthenticated", config.allow_unauthenticated, options.allow_unauthenticated,
                usual.allow_unauthenticated);
  reconcile_one("device_maps", config.device_maps, options.device_maps, usual.device_maps);
  reconcile_one("devices", config.devices, options.devices, usual.devices);
}

}  // namespace detail

}  // namespace ferry::inline v0
