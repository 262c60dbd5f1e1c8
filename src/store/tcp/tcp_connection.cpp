#include "tcp_connection.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../../base/authentication.hpp"
#include "../../base/net/socket_options.hpp"

namespace ferry::inline v0::detail {

using namespace std::chrono_literals;

namespace {

// How long the server may take to answer a cancel after the deadline.
constexpr auto cancel_grace = 250ms;
// Allocates at most this much more than has arrived.
constexpr std::size_t receive_step = std::size_t{1} << 20U;

store_connection::outcome from(interrupt::outcome waited) {
  return waited == interrupt::outcome::interrupted ? store_connection::outcome::interrupted
                                                   : store_connection::outcome::expired;
}

}  // namespace

store_connection::outcome store_connection::broken(std::string reason) {
  problem_ = std::move(reason);
  return outcome::broken;
}
store_connection::outcome store_connection::broken(int errno_value) {
  return broken(std::generic_category().message(errno_value));
}

store_connection::outcome store_connection::open(const socket_address& to, deadline until, bool& refused) {
  refused = false;
  socket_.reset(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_) return broken(errno);
  set_tcp_defaults(socket_.get());
  set_socket_option(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
  int problem = ::connect(socket_.get(), to.get(), to.size) == 0 ? 0 : errno;
  if (problem == EINPROGRESS || problem == EINTR) {
    const auto waited = stop_.wait(socket_.get(), POLLOUT, until);
    if (waited == interrupt::outcome::expired) broken(ETIMEDOUT);
    if (waited != interrupt::outcome::ready) return from(waited);
    socklen_t size = sizeof(problem);
    if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &problem, &size) != 0) problem = errno;
  }
  if (problem == 0) {
    // Connecting to a free local port may connect to itself (TCP's simultaneous open), which would block the port for
    // the server.
    const auto peer = socket_address::remote_end(socket_.get());
    if (peer.size == 0) {
      problem = errno;
    } else if (local().same_as(peer)) {
      problem = ECONNREFUSED;
      socket_.reset();
    }
  }
  refused = problem == ECONNREFUSED;
  return problem == 0 ? outcome::done : broken(problem);
}

socket_address store_connection::local() const {
  const auto result = socket_address::local_end(socket_.get());
  if (result.size == 0) throw_errno(errc::system_failure, "getsockname", errno);
  return result;
}

bool store_connection::alive() const noexcept {
  char unexpected = 0;
  return ::recv(socket_.get(), &unexpected, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
         (errno == EAGAIN || errno == EWOULDBLOCK);
}

store_connection::outcome store_connection::send_all(std::string_view bytes, deadline until) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      sent_anything_ = true;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return broken(errno);
    const auto waited = stop_.wait(socket_.get(), POLLOUT, until);
    if (waited != interrupt::outcome::ready) return from(waited);
  }
  return outcome::done;
}

store_connection::outcome store_connection::receive(std::span<char> out, std::size_t& have, deadline until) {
  while (have != out.size()) {
    const ssize_t got = ::recv(socket_.get(), out.data() + have, out.size() - have, 0);
    if (got > 0) {
      have += static_cast<std::size_t>(got);
      continue;
    }
    if (got == 0) return broken("the server closed the connection");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return broken(errno);
    const auto waited = stop_.wait(socket_.get(), POLLIN, until);
    if (waited != interrupt::outcome::ready) return from(waited);
  }
  return outcome::done;
}

store_connection::outcome store_connection::receive_more(std::string& bytes, std::size_t count, deadline until) {
  std::size_t have = bytes.size();
  bytes.resize(have + count);
  return receive(bytes, have, until);
}

store_connection::outcome store_connection::receive_hello(std::string& bytes, deadline until, server_hello& hello) {
  // The magic alone first: a peer with another protocol may send less than a hello and then wait.
  for (const std::size_t want : {store_wire::magic.size(), store_wire::server_hello_bytes}) {
    const auto got = receive_more(bytes, want - bytes.size(), until);
    if (got == outcome::expired) broken("connected, but there was no answer to the hello");
    if (got != outcome::done) return got;
    if (!bytes.starts_with(store_wire::magic)) {
      throw_error(errc::handshake_failed, "the service listening there is not a ferry store");
    }
  }
  field_reader fields(std::string_view(bytes).substr(store_wire::magic.size()));
  hello.version = fields.get<std::uint16_t>();
  hello.status = static_cast<store_wire::hello_status>(fields.get<std::uint16_t>());
  fields.take(8);  // features
  hello.server = fields.get<std::uint64_t>();
  hello.max_key_bytes = fields.get<std::uint32_t>();
  hello.max_value_bytes = fields.get<std::uint32_t>();
  return outcome::done;
}

store_connection::outcome store_connection::greet(std::uint64_t client, deadline until, server_hello& hello,
                                                  const std::string& secret) {
  using status = store_wire::hello_status;
  const bool proves = !secret.empty();
  std::string mine(store_wire::magic);
  put(mine, store_wire::version);
  put(mine, std::uint16_t{0});
  put(mine, proves ? store_wire::feature_authentication : std::uint64_t{0});
  put(mine, client);
  if (proves) {
    const nonce once = fresh_nonce();
    mine.append(reinterpret_cast<const char*>(once.data()), once.size());
  }
  if (const auto sent = send_all(mine, until); sent != outcome::done) return sent;
  std::string theirs;
  if (const auto got = receive_hello(theirs, until, hello); got != outcome::done) return got;
  if (hello.version != store_wire::version) return outcome::done;
  if (hello.status == status::secret_required) {
    throw_error(errc::authentication_failed,
                "the store there requires a secret, and none was given; give all workers the same one "
                "(worker_config::secret, FERRY_SECRET or FERRY_SECRET_FILE)");
  }
  if (!proves) return outcome::done;
  if (hello.status != status::challenge) {
    throw_error(errc::authentication_failed,
                "the store there asked for no proof of the secret: it was started without one, is an older ferry "
                "release, or is not genuine; give all workers the same secret");
  }

  if (const auto got = receive_more(theirs, sizeof(nonce), until); got != outcome::done) return got;
  const auto as_bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  const proof own = prove(secret, store_wire::client_role, {as_bytes(mine), as_bytes(theirs)});
  if (const auto sent = send_all({reinterpret_cast<const char*>(own.data()), own.size()}, until);
      sent != outcome::done) {
    return sent;
  }
  std::string answer;
  if (const auto got = receive_hello(answer, until, hello); got != outcome::done) return got;
  if (hello.status == status::other_secret) {
    throw_error(errc::authentication_failed, "the store there has another secret");
  }
  if (const auto got = receive_more(answer, sizeof(proof), until); got != outcome::done) return got;
  const std::string_view text = std::string_view(answer).substr(0, store_wire::server_hello_bytes);
  const proof expected = prove(secret, store_wire::server_role, {as_bytes(mine), as_bytes(theirs), as_bytes(text)});
  if (!same_proof(expected, as_bytes(std::string_view(answer).substr(store_wire::server_hello_bytes)))) {
    throw_error(errc::authentication_failed, "the store there gave no proof of the secret");
  }
  return outcome::done;
}

store_connection::outcome store_connection::exchange(std::string_view request, deadline until,
                                                     store_wire::status& status, std::string& body) {
  sent_anything_ = false;
  if (const auto sent = send_all(request, until); sent != outcome::done) return sent;
  std::array<char, store_wire::frame_header_bytes> bytes{};
  std::size_t have = 0;
  auto got = receive(bytes, have, until);
  if (got == outcome::expired) {
    until = deadline(clock::now() + cancel_grace);
    std::string cancel = store_wire::begin(store_wire::operation::cancel);
    store_wire::end_frame(cancel);
    got = send_all(cancel, until);
    if (got == outcome::done) got = receive(bytes, have, until);
  }
  if (got != outcome::done) return got;
  const store_wire::frame_header header = store_wire::read_header({bytes.data(), bytes.size()});
  if (header.kind > static_cast<std::uint8_t>(store_wire::status::error)) {
    throw_error(errc::protocol_error, fmt::format("the server sent a reply of unknown kind {}", header.kind));
  }
  if (header.length > max_body_bytes_) {
    throw_error(errc::protocol_error, fmt::format("the server announced a reply of {} bytes, more than the {} possible",
                                                  header.length, max_body_bytes_));
  }
  status = static_cast<store_wire::status>(header.kind);
  body.clear();
  have = 0;
  while (have != header.length) {
    body.resize(have + std::min<std::size_t>(header.length - have, std::max(receive_step, have)));
    got = receive(body, have, until);
    if (got != outcome::done) return got;
  }
  return outcome::done;
}

}  // namespace ferry::inline v0::detail
