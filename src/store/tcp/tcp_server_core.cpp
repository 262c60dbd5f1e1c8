#include "tcp_server_core.hpp"

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>

#include <fmt/format.h>
#include <asio/ip/v6_only.hpp>
#include <asio/post.hpp>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/base/log.hpp>

#include "../../base/net/socket_options.hpp"
#include "../../base/signal_mask.hpp"
#include "../../transport/sockets/descriptor_reserve.hpp"
#include "tcp_server_session.hpp"

namespace ferry::inline v0::detail {

using namespace std::chrono_literals;
using asio::ip::tcp;

namespace {

// Connections beyond the limit that have not sent a hello yet.
constexpr std::size_t spare_connections = 64;

tcp::endpoint to_endpoint(const socket_address& address) {
  tcp::endpoint result(address.family() == AF_INET ? tcp::v4() : tcp::v6(), 0);
  std::memcpy(result.data(), address.get(), address.size);
  return result;
}

// Opens `acceptor` at `where`; returns the error, if any.
asio::error_code listen_at(tcp::acceptor& acceptor, const tcp::endpoint& where) {
  asio::error_code problem;
  const auto failed = [&] {
    if (!problem) return false;
    asio::error_code ignored;
    acceptor.close(ignored);
    return true;
  };
  acceptor.open(where.protocol(), problem);
  if (failed()) return problem;
  ::fcntl(acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
  // Allows a port whose last server closed its connections a moment ago.
  acceptor.set_option(tcp::acceptor::reuse_address(true), problem);
  if (failed()) return problem;
  if (where.protocol() == tcp::v6() && where.address().is_unspecified()) {
    acceptor.set_option(asio::ip::v6_only(false), problem);
    if (failed()) return problem;
  }
  acceptor.bind(where, problem);
  if (failed()) return problem;
  acceptor.listen(asio::socket_base::max_listen_connections, problem);
  if (failed()) return problem;
  acceptor.non_blocking(true, problem);
  failed();
  return problem;
}

bool no_such_address(const asio::error_code& problem) {
  return problem.value() == EADDRNOTAVAIL || problem.value() == EAFNOSUPPORT;
}

}  // namespace

store_server_core::store_server_core(const tcp_store_limits& limits, std::string secret)
    : limits_(limits), secret_(std::move(secret)), id_(incarnation_id::random().value) {}

store_server_core::store_server_core(const std::string& host, const socket_address& at, const tcp_store_limits& limits,
                                     const tcp_store_access& access)
    : store_server_core(limits, access.secret) {
  descriptor_reserve::of_process().fill();  // before the program takes all of them
  const tcp::endpoint wanted = to_endpoint(at);
  asio::error_code problem = listen_at(acceptor_, wanted);
  if (no_such_address(problem) && !at.is_loopback()) {
    // An address that NAT maps to this machine, or a machine without IPv6: listen on all addresses.
    problem = listen_at(acceptor_, tcp::endpoint(tcp::v6(), wanted.port()));
    if (no_such_address(problem)) problem = listen_at(acceptor_, tcp::endpoint(tcp::v4(), wanted.port()));
  }
  if (problem) {
    const std::string where = host_and_port(host, at.port());
    if (problem.value() == EADDRINUSE) {
      throw_error(
          errc::address_in_use,
          fmt::format("the store cannot listen on {}: another process uses the port, perhaps the previous run, still "
                      "ending; end it or choose another port",
                      where));
    }
    throw_error(errc::system_failure, fmt::format("the store cannot listen on {}: {}", where, problem.message()));
  }
  const tcp::endpoint bound = acceptor_.local_endpoint();
  port_ = bound.port();
  address_ = bound.address().to_string();

  accept();
  const signals_blocked here;
  thread_ = std::thread([this] {
    ::pthread_setname_np(::pthread_self(), "ferry-store");
    context_.run();
  });
}

store_server_core::~store_server_core() {
  if (!thread_.joinable()) {
    close_all();
    return;
  }
  asio::post(context_, [this] { close_all(); });
  thread_.join();
}

void store_server_core::close_all() {
  stopping_ = true;
  asio::error_code ignored;  // closing: errors do not matter
  acceptor_.close(ignored);
  accept_again_.cancel();
  while (!sessions_.empty()) {
    const auto session = sessions_.begin()->second;
    session->close();
  }
}

void store_server_core::stop_accepting() noexcept {
  const auto change = [this](listener_state to) {
    {
      const std::lock_guard lock(clients_mutex_);
      listener_ = to;
    }
    clients_changed_.notify_all();
  };
  change(listener_state::closing);
  try {
    asio::post(context_, [this, change] {
      asio::error_code ignored;  // closing: errors do not matter
      acceptor_.close(ignored);
      accept_again_.cancel();
      change(listener_state::closed);
    });
  } catch (const std::bad_alloc&) {
    change(listener_state::open);  // the server goes on accepting until it ends
  }
}

bool store_server_core::accepts() const {
  std::unique_lock lock(clients_mutex_);
  clients_changed_.wait(lock, [this] { return listener_ != listener_state::closing; });
  return listener_ == listener_state::open;
}

void store_server_core::accept() {
  acceptor_.async_accept([this](const asio::error_code& problem, tcp::socket socket) {
    if (stopping_ || !acceptor_.is_open()) return;
    if (!problem) {
      try {
        admit(std::move(socket));
      } catch (const std::exception& trouble) {
        warn([&] { return fmt::format("refused a connection: {}", trouble.what()); });
      }
      return accept();
    }
    if (!descriptor_reserve::is_shortage(problem.value())) return accept();  // it broke before it was accepted
    // With a descriptor of the reserve there is one to report it to the client; its session gives it back.
    if (problem.value() == EMFILE && descriptor_reserve::of_process().release_one(0)) return accept();
    // The connection stays in the queue, so accepting again at once would spin.
    descriptor_reserve::of_process().warn("the store server cannot accept connections for now", problem.value());
    if (!unidentified_.empty()) unidentified_.front()->close();
    accept_again_.expires_after(50ms);
    accept_again_.async_wait([this](const asio::error_code& stopped) {
      if (!stopped && !stopping_ && acceptor_.is_open()) accept();
    });
  });
}

void store_server_core::admit(tcp::socket socket) {
  ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
  asio::error_code problem;
  socket.non_blocking(true, problem);
  if (problem) return;  // already broken
  set_tcp_defaults(socket.native_handle());
  begin_session(std::move(socket));
}

void store_server_core::begin_session(tcp::socket socket) {
  // Above the limit there is room to report it to clients, but not for a flood of silent peers.
  if (sessions_.size() >= limits_.max_connections + spare_connections && !unidentified_.empty()) {
    unidentified_.front()->close();  // the one that has been silent longest
  }
  const auto session = std::make_shared<store_session>(*this, std::move(socket));
  sessions_.emplace(session.get(), session);
  session->unidentified_place = unidentified_.insert(unidentified_.end(), session.get());
  count_connections();
  session->start();
}

void store_server_core::count_connections() {
  const std::lock_guard lock(clients_mutex_);
  connections_ = sessions_.size();
}

store_wire::hello_status store_server_core::admission() const noexcept {
  if (sessions_.size() - unidentified_.size() >= limits_.max_connections)
    return store_wire::hello_status::too_many_connections;
  // The client may have been accepted with a descriptor of the reserve.
  auto& reserve = descriptor_reserve::of_process();
  if (reserve.fill()) return store_wire::hello_status::welcome;
  reserve.warn("a client of the store was refused", EMFILE);
  return store_wire::hello_status::no_descriptors;
}

void store_server_core::greeted(store_session& session) {
  unidentified_.erase(session.unidentified_place);
  session.unidentified_place = unidentified_.end();
  const std::lock_guard lock(clients_mutex_);
  ++clients_[*session.client()];
}

void store_server_core::closed(store_session& session) {
  if (session.has_greeted()) {
    {
      const std::lock_guard lock(clients_mutex_);
      const auto at = clients_.find(*session.client());
      if (--at->second == 0) clients_.erase(at);
    }
    clients_changed_.notify_all();
  } else {
    unidentified_.erase(session.unidentified_place);
  }
  sessions_.erase(&session);
  count_connections();
}

std::size_t store_server_core::connections() const {
  const std::lock_guard lock(clients_mutex_);
  return connections_;
}

void store_server_core::kick() {
  {
    const std::lock_guard lock(clients_mutex_);
  }  // a thread that checks now sees the reason; waiting threads are
     // notified
  clients_changed_.notify_all();
}

void store_server_core::set(std::string_view key, std::string value) {
  const auto* held = table_.find(key);
  const std::size_t freed = held ? key_table::cost(key.size(), held->value.size()) : 0;
  if (table_.bytes() - freed + key_table::cost(key.size(), value.size()) > limits_.max_total_bytes) {
    throw_error(errc::store_failed,
                fmt::format("the store is full: it takes at most {} bytes of keys and values, and counts {} more for "
                            "each entry",
                            limits_.max_total_bytes, key_table::entry_overhead));
  }
  table_.set(key, std::move(value), ++revision_);
  wake(key);
}

void store_server_core::charge(std::size_t bytes) {
  unfinished_bytes_ += bytes;
  if (unfinished_bytes_ > limits_.max_total_bytes + scratch_.size()) {
    throw_error(errc::limit_exceeded, "too many bytes of unfinished messages and unread replies");
  }
}

void store_server_core::hold(std::size_t bytes) {
  if (held_bytes_ + bytes > limits_.max_total_bytes) {
    throw_error(errc::limit_exceeded, fmt::format("the requests that wait in the store would take more than {} bytes",
                                                  limits_.max_total_bytes));
  }
  held_bytes_ += bytes;
}

bool store_server_core::erase(std::string_view key) {
  if (!table_.erase(key)) return false;
  wake(key);
  return true;
}

void store_server_core::park(store_session& session, const std::string& key) {
  waiting_[key].insert(&session);
  session.waits_for = key;
}

void store_server_core::unpark(store_session& session) {
  if (session.waits_for.empty()) return;
  const auto at = waiting_.find(session.waits_for);
  if (at != waiting_.end()) {
    at->second.erase(&session);
    if (at->second.empty()) waiting_.erase(at);
  }
  session.waits_for.clear();
}

void store_server_core::wake(std::string_view key) {
  auto node = waiting_.extract(std::string(key));
  if (node.empty()) return;
  std::vector<std::shared_ptr<store_session>> woken;
  for (store_session* each : node.mapped()) woken.push_back(sessions_.at(each));
  for (const auto& each : woken) each->waits_for.clear();
  for (const auto& each : woken) each->wake();
}

}  // namespace ferry::inline v0::detail
