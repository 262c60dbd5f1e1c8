#include <ferry/store/tcp_store.hpp>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/base/log.hpp>
#include <ferry/base/work.hpp>

#include "../../base/authentication.hpp"
#include "../host_lookup.hpp"
#include "tcp_connection.hpp"
#include "tcp_replies.hpp"
#include "tcp_server_core.hpp"

namespace ferry::inline v0 {

using namespace std::chrono_literals;
namespace wire = detail::store_wire;
using outcome = detail::store_connection::outcome;

namespace detail {
namespace {

// One address of several may be unreachable; the others must be tried, too.
constexpr auto longest_attempt = 5s;
constexpr std::chrono::nanoseconds first_connect_pause = 1ms;
constexpr std::chrono::nanoseconds longest_connect_pause = 250ms;
constexpr std::size_t most_idle_connections = 8;
// A first contact that takes longer is said in the log: without a word the start of a worker looks as if it hung.
constexpr auto silent_first_contact = 10s;
constexpr std::string_view advice_for_start = ". Does rank 0 run, and do host and port name its machine?";

}  // namespace
}  // namespace detail

struct tcp_store::state {
  detail::interrupt closing;
  const std::uint64_t client = incarnation_id::random().value;
  bool host_is_loopback = false;

  std::mutex mutex;  // guards what follows
  std::vector<std::unique_ptr<detail::store_connection>> idle;
  std::uint64_t server = 0;  // 0: never reached
  std::string local_address;
};

struct tcp_store::reply {
  wire::status status = wire::status::ok;
  std::string body;
};

tcp_store::tcp_store(tcp_store_options options) : options_(std::move(options)), state_(std::make_unique<state>()) {
  if (options_.host.empty()) throw_error(errc::bad_address, "the host of the tcp store is empty");
  if (options_.port == 0 && options_.server) options_.port = options_.server->port();
  if (options_.port == 0) {
    throw_error(errc::bad_address, fmt::format("port 0 of host {} cannot be connected to", options_.host));
  }
  detail::check_secret_usable(options_.secret);
  state_->host_is_loopback = detail::spells_loopback(options_.host);
  const blocking_scope blocking;
  const auto since = clock::now();
  state_->idle.push_back(connect(deadline::after(options_.limit.value_or(default_timeout())), since));
}

tcp_store::~tcp_store() = default;

void tcp_store::close() noexcept {
  state_->closing.raise();
  {
    const std::lock_guard lock(state_->mutex);
    state_->idle.clear();
  }
  if (options_.server) options_.server->core_->kick();
}

bool tcp_store::drain(timeout limit) {
  // If the server has another owner it continues to run.
  if (!options_.server || options_.server.use_count() > 1) return true;
  const blocking_scope blocking;
  const bool alone = options_.server->core_->wait_alone(
      state_->client, deadline::after(limit.value_or(default_timeout())), [&] { return state_->closing.raised(); });
  if (state_->closing.raised()) detail::throw_store_closed(*this);
  return alone;
}

void tcp_store::admit_no_more() noexcept {
  if (options_.server && options_.server.use_count() == 1) options_.server->core_->stop_accepting();
}

std::string tcp_store::local_address() const {
  const std::lock_guard lock(state_->mutex);
  return state_->local_address;
}

std::string tcp_store::describe() const {
  return fmt::format("tcp store {}", detail::host_and_port(options_.host, options_.port));
}

// A connection after the handshake. Retries until the deadline while the server does not answer.
std::unique_ptr<detail::store_connection> tcp_store::connect(deadline until, clock::time_point since) {
  std::uint64_t known_server = 0;
  {
    const std::lock_guard lock(state_->mutex);
    known_server = state_->server;
  }
  std::string reason;
  bool said_late = false;
  const auto unreachable = [&](std::string_view advice) {
    throw_error(errc::store_unreachable, fmt::format("cannot reach the {}: waited {}; last reason: {}{}", describe(),
                                                     detail::seconds_since(since), reason, advice));
  };
  // `to` after the handshake, or nullptr with `reason`. One of several addresses must not use up the time of the
  // others.
  const auto attempt = [&](const detail::socket_address& to, bool several,
                           bool& refused) -> std::unique_ptr<detail::store_connection> {
    const auto begun = clock::now();
    auto connection = std::make_unique<detail::store_connection>(state_->closing);
    auto reached = connection->open(to, detail::sooner(until, detail::longest_attempt), refused);
    detail::server_hello hello;
    try {
      if (reached == outcome::done) {
        const deadline limit = several ? detail::sooner(until, detail::longest_attempt) : until;
        reached = connection->greet(state_->client, limit, hello, options_.secret);
      }
    } catch (const error& problem) {
      throw_error(problem.kind(),
                  fmt::format("{}: {}", detail::host_and_port(options_.host, options_.port), problem.message()));
    }
    if (reached == outcome::interrupted) detail::throw_store_closed(*this);
    if (reached != outcome::done) {
      // An attempt cut short by the deadline is less informative than the one before it.
      const bool cut_short = reached == outcome::expired && clock::now() - begun < 100ms;
      if (reason.empty() || !cut_short) reason = fmt::format("{} ({})", connection->problem(), to.host());
      return nullptr;
    }
    if (hello.version != wire::version) {
      throw_error(errc::version_mismatch, fmt::format("the {} uses version {} of the store protocol, this program {}",
                                                      describe(), hello.version, wire::version));
    }
    if (hello.status == wire::hello_status::too_many_connections) {
      reason = "the server has as many connections as it allows";
      return nullptr;
    }
    if (hello.status == wire::hello_status::no_descriptors) {
      reason = "the server's process has run out of file descriptors (RLIMIT_NOFILE); raise that limit there";
      return nullptr;
    }
    if (hello.status != wire::hello_status::welcome || hello.max_key_bytes < max_key_bytes) {
      throw_error(errc::handshake_failed,
                  fmt::format("the {} refused the connection (status {})", describe(), static_cast<int>(hello.status)));
    }
    const std::lock_guard lock(state_->mutex);
    if (state_->server == 0) {
      state_->server = hello.server;
      set_max_value_bytes(hello.max_value_bytes);
      detail::socket_address local = connection->local();
      if (local.is_loopback() && !state_->host_is_loopback) {
        if (const auto routed = detail::routed_address(local.family())) local = *routed;
      }
      state_->local_address = local.host();
    } else if (state_->server != hello.server) {
      throw_error(errc::store_failed, fmt::format("the {} was restarted and has lost its content", describe()));
    }
    connection->set_max_body_bytes(wire::max_body_bytes(hello.max_value_bytes));
    return connection;
  };

  for (std::chrono::nanoseconds pause = detail::first_connect_pause;;
       pause = std::min(pause * 2, detail::longest_connect_pause)) {
    // If this process hosts the server, it does not wait for a slow name server without limit.
    detail::resolution found =
        detail::resolve_host(options_.host, options_.port, state_->closing,
                             options_.server ? detail::sooner(until, detail::longest_attempt) : until);
    if (state_->closing.raised()) detail::throw_store_closed(*this);
    if (!found.problem.empty()) reason = found.problem;
    // The host's own machine may not be able to reach itself by the name or address that other machines use.
    if (options_.server) {
      const std::string& bound = options_.server->address();
      const std::string here = bound == "::" || bound == "0.0.0.0" ? "127.0.0.1" : bound;
      if (const auto own = detail::socket_address::from_literal(here, options_.server->port()))
        found.addresses.push_back(*own);
    }
    bool all_refused = !found.addresses.empty();
    for (const detail::socket_address& to : found.addresses) {
      bool refused = false;
      if (auto connection = attempt(to, found.addresses.size() > 1, refused)) return connection;
      all_refused = all_refused && refused;
      if (until.expired()) break;
    }
    if (known_server != 0 && all_refused) unreachable(". It was reached before: the process that serves it has ended");
    if (!said_late && known_server == 0 && clock::now() - since > detail::silent_first_contact) {
      said_late = true;
      log(log_level::warning, fmt::format("the {} has not answered for {}: {}{}", describe(),
                                          detail::seconds_since(since), reason, detail::advice_for_start));
    }
    if (until.expired()) unreachable(detail::advice_for_start);
    if (state_->closing.sleep(pause, until) == detail::interrupt::outcome::interrupted) {
      detail::throw_store_closed(*this);
    }
  }
}

// The reply `ok`, or `also`: any other one does not match the request.
tcp_store::reply tcp_store::transact(const std::string& request, bool repeatable, deadline until,
                                     detail::store_wire::status also) {
  const blocking_scope blocking;
  const auto since = clock::now();
  for (std::chrono::nanoseconds pause = detail::first_connect_pause;;
       pause = std::min(pause * 2, detail::longest_connect_pause)) {
    std::unique_ptr<detail::store_connection> connection;
    {
      const std::lock_guard lock(state_->mutex);
      while (!connection && !state_->idle.empty()) {
        connection = std::move(state_->idle.back());
        state_->idle.pop_back();
        if (!connection->alive()) connection.reset();
      }
    }
    if (state_->closing.raised()) detail::throw_store_closed(*this);
    if (!connection) connection = connect(until, since);

    reply answer;
    switch (connection->exchange(request, until, answer.status, answer.body)) {
      case outcome::done: {
        const std::lock_guard lock(state_->mutex);
        if (!state_->closing.raised() && state_->idle.size() < detail::most_idle_connections) {
          state_->idle.push_back(std::move(connection));
        }
        break;
      }
      case outcome::interrupted: detail::throw_store_closed(*this);
      case outcome::expired:
        throw_error(errc::store_timeout,
                    fmt::format("waited {} for the answer of the {}{}", detail::seconds_since(since), describe(),
                                repeatable ? "" : "; whether it executed the request is unknown"));
      case outcome::broken:
        if (!repeatable && connection->sent_anything()) {
          throw_error(errc::store_failed,
                      fmt::format("the connection to the {} broke ({}); whether it executed the request is unknown",
                                  describe(), connection->problem()));
        }
        log(log_level::debug, fmt::format("{}: connection broke ({}), retrying", describe(), connection->problem()));
        if (until.expired()) {
          throw_error(errc::store_unreachable,
                      fmt::format("lost the connection to the {} and could not reconnect: waited {}; last reason: {}",
                                  describe(), detail::seconds_since(since), connection->problem()));
        }
        if (state_->closing.sleep(pause, until) == detail::interrupt::outcome::interrupted) {
          detail::throw_store_closed(*this);
        }
        continue;
    }
    if (answer.status == wire::status::error) {
      const auto refused = wire::read_error(answer.body);
      throw_error(refused.code, fmt::format("{}: {}", describe(), refused.text));
    }
    if (answer.status != wire::status::ok && answer.status != also) {
      throw_error(errc::protocol_error, fmt::format("the {} sent a reply of kind {}, which does not match the request",
                                                    describe(), static_cast<int>(answer.status)));
    }
    return answer;
  }
}

namespace detail {
namespace {

std::string finished(std::string frame) {
  wire::end_frame(frame);
  return frame;
}

}  // namespace
}  // namespace detail

void tcp_store::do_set(std::string_view key, std::string_view value, deadline until) {
  std::string request = wire::begin(wire::operation::set);
  detail::put_string(request, key);
  detail::put_string(request, value);
  transact(detail::finished(std::move(request)), true, until);
}

std::vector<std::string> tcp_store::do_get(std::span<const std::string> keys, bool values, deadline until) {
  const auto since = clock::now();
  std::vector<std::string> found;
  if (values) found.reserve(keys.size());
  for (std::size_t done = 0; done < keys.size();) {
    // As many keys as fit in one message; a key and its length are far below the limit of a message.
    std::string request = wire::begin(wire::operation::get);
    detail::put(request, static_cast<std::uint8_t>(wire::get_wait | (values ? wire::get_values : 0)));
    const std::size_t count_at = request.size();
    detail::put(request, std::uint32_t{0});
    std::uint32_t count = 0;
    for (; done + count < keys.size() && count < wire::max_keys_per_get && request.size() < wire::page_bytes; ++count) {
      detail::put_string(request, keys[done + count]);
    }
    for (std::size_t i = 0; i < 4; ++i) request[count_at + i] = static_cast<char>(count >> (8 * i));

    const reply answer = transact(detail::finished(std::move(request)), true, until, wire::status::cancelled);
    if (answer.status == wire::status::cancelled) {
      const auto missing = wire::read_missing(answer.body);
      detail::throw_keys_missing(*this, missing.names, missing.count, since);
    }
    if (!values) {
      done += count;
      continue;
    }
    const std::size_t before = found.size();
    wire::read_values(answer.body, count, found);
    done += found.size() - before;
  }
  return found;
}

std::optional<std::string> tcp_store::do_try_get(std::string_view key, deadline until) {
  std::string request = wire::begin(wire::operation::get);
  detail::put(request, static_cast<std::uint8_t>(wire::get_values));
  detail::put(request, std::uint32_t{1});
  detail::put_string(request, key);
  const reply answer = transact(detail::finished(std::move(request)), true, until, wire::status::absent);
  if (answer.status == wire::status::absent) return std::nullopt;
  return wire::read_value(answer.body);
}

std::int64_t tcp_store::do_add(std::string_view key, std::int64_t delta, deadline until) {
  std::string request = wire::begin(wire::operation::add);
  detail::put_string(request, key);
  detail::put(request, delta);
  return wire::read_sum(transact(detail::finished(std::move(request)), false, until).body);
}

std::string tcp_store::do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                      deadline until) {
  std::string request = wire::begin(wire::operation::compare_set);
  detail::put_string(request, key);
  detail::put_string(request, expected);
  detail::put_string(request, desired);
  return transact(detail::finished(std::move(request)), false, until).body;
}

bool tcp_store::do_erase(std::string_view key, deadline until) {
  std::string request = wire::begin(wire::operation::erase);
  detail::put_string(request, key);
  return wire::read_erased(transact(detail::finished(std::move(request)), false, until).body);
}

std::vector<store_entry> tcp_store::do_list(std::string_view prefix, deadline until) {
  std::vector<store_entry> found;
  for (bool more = true; more;) {
    std::string request = wire::begin(wire::operation::list);
    detail::put_string(request, prefix);
    detail::put_string(request, found.empty() ? std::string_view() : std::string_view(found.back().key));
    more = wire::read_page(transact(detail::finished(std::move(request)), true, until).body, prefix, found);
  }
  return found;
}

std::size_t tcp_store::do_count(std::string_view prefix, deadline until) {
  std::string request = wire::begin(wire::operation::count);
  detail::put_string(request, prefix);
  return wire::read_count(transact(detail::finished(std::move(request)), true, until).body);
}

store_change tcp_store::do_wait_change(std::string_view key, std::uint64_t last_version, deadline until) {
  const auto since = clock::now();
  std::string request = wire::begin(wire::operation::wait_change);
  detail::put_string(request, key);
  detail::put(request, last_version);
  const reply answer = transact(detail::finished(std::move(request)), true, until, wire::status::cancelled);
  if (answer.status == wire::status::cancelled) detail::throw_no_change(*this, key, since);
  return wire::read_change(answer.body);
}

}  // namespace ferry::inline v0
