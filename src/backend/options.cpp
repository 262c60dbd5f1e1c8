#include <ferry/backend/options.hpp>
#include <ferry/base/error.hpp>

#include <fmt/format.h>

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
  if (transport.port_last != 0 && transport.port_last < transport.port) {
    throw_error(errc::invalid_argument,
                fmt::format("the port range {}..{} is empty", transport.port, transport.port_last));
  }
  if (transport.max_spin.count() < 0) throw_error(errc::invalid_argument, "transport.max_spin must not be negative");
}

rpc_options worker_config::options() const {
  rpc_options result;
  result.rpc_timeout = rpc_timeout;
  result.init_method = init_method;
  result.num_worker_threads = num_worker_threads;
  result.max_blocked_handlers = max_blocked_handlers;
  result.transports = transports;
  result.transport = transport;
  result.check();
  return result;
}

}  // namespace ferry::inline v0
