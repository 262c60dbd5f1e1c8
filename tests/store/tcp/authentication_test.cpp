// Proofs of the shared secret between a tcp store and its server, and which clients may be served at all.

#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include <doctest/doctest.h>

#include <ferry/base/secret.hpp>
#include <ferry/store/rendezvous.hpp>
#include <ferry/store/tcp_store.hpp>

#include <ferry/test_kit/store_conformance.hpp>

#include "captured_log.hpp"
#include "launch_environment.hpp"
#include "ports.hpp"
#include "raw_socket.hpp"
#include "tests/store/store_fixtures.hpp"

#include "base/authentication.hpp"
#include "store/tcp/tcp_protocol.hpp"

namespace authentication_test {

using namespace store_test;
using ferry::errc;
using ferry::tcp_store;
using ferry::tcp_store_server;

}  // namespace authentication_test
namespace d = ferry::detail;
namespace wire = ferry::detail::store_wire;

namespace authentication_test {

namespace {

const std::string right = "the secret of the group";
const std::string wrong = "of no group, 4711";

std::shared_ptr<tcp_store_server> server_with(const std::string& secret, const ferry::tcp_store_limits& limits = {}) {
  return tcp_store_server::listen("127.0.0.1", 0, limits, {.secret = secret});
}
tcp_store client_with(std::uint16_t port, const std::string& secret) {
  return tcp_store({.host = "127.0.0.1", .port = port, .limit = plenty, .secret = secret});
}
errc failure(std::uint16_t port, const std::string& secret, std::string& text) {
  const auto kind = kind_of([&] { (void)client_with(port, secret); }, &text);
  for (const auto& each : {right, wrong}) CHECK_FALSE(contains(text, each));
  return kind;
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
template <class Bytes>
std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string client_hello(bool offers) {
  std::string out(wire::magic);
  d::put(out, wire::version);
  d::put(out, std::uint16_t{0});
  d::put(out, offers ? wire::feature_authentication : std::uint64_t{0});
  d::put(out, std::uint64_t{77});
  if (offers) out += text_of(d::fresh_nonce());
  return out;
}
std::string server_hello(wire::hello_status status) {
  std::string out(wire::magic);
  d::put(out, wire::version);
  d::put(out, static_cast<std::uint16_t>(status));
  d::put(out, wire::feature_authentication);
  d::put(out, std::uint64_t{7});
  d::put(out, std::uint32_t{4096});
  d::put(out, std::uint32_t{65536});
  return out;
}
int status_of(const std::string& hello) { return static_cast<unsigned char>(hello.at(6)); }

/// A raw client that has received a challenge.
struct challenged {
  std::string hello;
  raw_socket peer;
  std::string challenge;
  explicit challenged(std::uint16_t port, std::string said = client_hello(true))
      : hello(std::move(said)), peer(raw_socket::connect(port)) {
    peer.send(hello);
    challenge = peer.receive(wire::server_hello_bytes + sizeof(d::nonce));
    REQUIRE(challenge.size() == wire::server_hello_bytes + sizeof(d::nonce));
    CHECK(status_of(challenge) == 3);
  }
  [[nodiscard]] std::string proof(std::string_view role = wire::client_role) const {
    return text_of(d::prove(right, role, {bytes_of(hello), bytes_of(challenge)}));
  }
  int answer_to(const std::string& proof) {
    peer.send(proof);
    const auto answer = peer.receive(wire::server_hello_bytes);
    return answer.size() == wire::server_hello_bytes ? status_of(answer) : -1;
  }
};

}  // namespace

TEST_CASE("limits with which a server would serve no client are refused") {
  for (const ferry::tcp_store_limits& limits :
       {ferry::tcp_store_limits{.max_value_bytes = 0}, ferry::tcp_store_limits{.max_total_bytes = 0},
        ferry::tcp_store_limits{.max_connections = 0}, ferry::tcp_store_limits{.message_timeout = 0ms},
        ferry::tcp_store_limits{.handshake_timeout = -1ms}}) {
    std::string text;
    CHECK(kind_of([&] { (void)tcp_store_server::listen("127.0.0.1", 0, limits); }, &text) == errc::invalid_argument);
    CHECK(text.find("of a tcp store is") != std::string::npos);
  }
}

TEST_CASE("a tcp store and its server must have the same secret") {
  if (!ferry::authentication_available()) {
    CHECK(kind_of([&] { (void)server_with(right); }) == errc::invalid_argument);
    CHECK(kind_of([&] { (void)client_with(1, right); }) == errc::invalid_argument);
    return;
  }
  ferry_test::captured_log log;
  std::string text;
  SUBCASE("the server has one") {
    const auto server = server_with(right);
    auto first = client_with(server->port(), right);
    first.set("key", "value");
    CHECK(client_with(server->port(), right).get("key") == "value");
    CHECK(failure(server->port(), wrong, text) == errc::authentication_failed);
    CHECK(contains(text, "127.0.0.1:" + std::to_string(server->port())));
    CHECK(contains(text, "the store there has another secret"));
    CHECK(failure(server->port(), "", text) == errc::authentication_failed);
    CHECK(contains(text, "requires a secret, and none was given"));
    CHECK(first.get("key") == "value");
    CHECK(log.has("refused a client: it has another secret", ""));
    CHECK(log.has("refused a client: it gave no secret", ""));
    // The same address with another secret would be another server, which is not possible.
    CHECK(kind_of([&] { (void)tcp_store_server::listen("127.0.0.1", server->port(), {}, {.secret = wrong}); }) ==
          errc::invalid_argument);
    CHECK(tcp_store_server::listen("127.0.0.1", server->port(), {}, {.secret = right}) == server);
  }
  SUBCASE("the server has none") {
    const auto server = server_with("");
    CHECK(failure(server->port(), right, text) == errc::authentication_failed);
    CHECK(contains(text, "it was started without one"));
    client_with(server->port(), "").set("key", "value");
    CHECK(log.has("refused a client: it has a secret, and the server has none", ""));
  }
}

TEST_CASE("a client that has not proved the secret can neither read nor change the store") {
  if (!ferry::authentication_available()) return;
  const auto server = server_with(right);
  client_with(server->port(), right).set("key", "value");
  const std::string nothing(8 + 4 + 4, '\0');
  SUBCASE("requests instead of a proof") {
    challenged peer(server->port());
    CHECK((peer.challenge.substr(16, 16) == nothing));
    std::string request = wire::begin(wire::operation::erase);
    d::put_string(request, "key");
    wire::end_frame(request);
    while (request.size() < 32) request += '\0';
    CHECK(peer.answer_to(request) == 4);
    peer.peer.wait_closed();
  }
  SUBCASE("a hello of an older release") {
    auto peer = raw_socket::connect(server->port());
    peer.send(client_hello(false));
    const auto answer = peer.receive(wire::server_hello_bytes);
    REQUIRE(answer.size() == wire::server_hello_bytes);
    CHECK(status_of(answer) == 5);
    CHECK((answer.substr(16, 16) == nothing));
    peer.wait_closed();
  }
  SUBCASE("a proof that was replayed, made in the server's role, or damaged") {
    challenged honest(server->port());
    const auto proof = honest.proof();
    CHECK(honest.answer_to(proof) == 0);
    CHECK(challenged(server->port(), honest.hello).answer_to(proof) == 4);
    challenged reflecting(server->port());
    CHECK(reflecting.answer_to(reflecting.proof(wire::server_role)) == 4);
    for (std::size_t at = 0; at != 32; ++at) {
      challenged damaged(server->port());
      auto flipped = damaged.proof();
      flipped[at] = static_cast<char>(flipped[at] ^ 1);
      CHECK(damaged.answer_to(flipped) == 4);
    }
    for (const std::size_t at : {std::size_t{16}, std::size_t{24}, std::size_t{55}}) {  // client id, nonce
      auto changed = client_hello(true);
      const auto original = changed;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      challenged relayed(server->port(), changed);
      relayed.hello = original;
      CHECK(relayed.answer_to(relayed.proof()) == 4);
    }
  }
  SUBCASE("a connection that ends in the middle") {
    for (std::size_t size = 0; size < 32; size += 5) {
      challenged peer(server->port());
      peer.peer.send(peer.proof().substr(0, size));
      ::shutdown(peer.peer.descriptor(), SHUT_WR);
      peer.peer.wait_closed();
    }
  }
  CHECK(client_with(server->port(), right).get("key") == "value");
}

TEST_CASE("a server that cannot prove the secret is refused") {
  if (!ferry::authentication_available()) return;
  raw_socket listening = raw_socket::listen();
  std::string text;
  const auto client_meets = [&](auto&& serve) {
    std::thread server([&] {
      raw_socket peer = listening.accept();
      const auto hello = peer.receive(wire::client_hello_bytes + sizeof(d::nonce));
      serve(peer, hello);
      peer.wait_closed();
    });
    const auto kind = failure(listening.port(), right, text);
    server.join();
    return kind;
  };
  const auto challenge = server_hello(wire::hello_status::challenge) + text_of(d::fresh_nonce());
  CHECK(client_meets([](raw_socket& peer, const std::string&) {
          peer.send(server_hello(wire::hello_status::welcome));
        }) == errc::authentication_failed);
  CHECK(contains(text, "asked for no proof of the secret"));
  CHECK(client_meets([&](raw_socket& peer, const std::string&) {
          peer.send(challenge);
          (void)peer.receive(32);
          peer.send(server_hello(wire::hello_status::welcome) + std::string(32, 'x'));
        }) == errc::authentication_failed);
  CHECK(contains(text, "gave no proof of the secret"));
  CHECK(client_meets([&](raw_socket& peer, const std::string&) {
          peer.send(challenge);
          const auto proof = peer.receive(32);
          peer.send(server_hello(wire::hello_status::welcome) + proof);  // reflected to the client
        }) == errc::authentication_failed);
  CHECK(client_meets([&](raw_socket& peer, const std::string& hello) {
          peer.send(challenge);
          (void)peer.receive(32);
          const auto answer = server_hello(wire::hello_status::welcome);
          peer.send(answer + text_of(d::prove(wrong, wire::server_role,
                                              {bytes_of(hello), bytes_of(challenge), bytes_of(answer)})));
        }) == errc::authentication_failed);
}

TEST_CASE("a client that takes too long for its hello or its proof is dropped, even if it keeps sending") {
  const auto drops = [](const std::shared_ptr<tcp_store_server>& server, raw_socket& peer, const std::string& said) {
    timeval pace{0, 10'000};
    ::setsockopt(peer.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &pace, sizeof pace);
    // A byte now and then, as long as the server accepts them: only the limit on the whole message can end that.
    std::size_t at = 0;
    const auto begun = std::chrono::steady_clock::now();
    for (;;) {
      if (at + 1 < said.size() && !peer.send(said.substr(at++, 1))) break;
      char byte = 0;
      const auto got = ::recv(peer.descriptor(), &byte, 1, 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) break;
      if (std::chrono::steady_clock::now() - begun > std::chrono::seconds(30)) return false;
    }
    while (server->connections() != 0) std::this_thread::yield();  // the count is updated after the close
    return true;
  };
  const auto secret = ferry::authentication_available() ? right : std::string();
  const auto server = server_with(secret, {.handshake_timeout = std::chrono::milliseconds(300)});
  auto peer = raw_socket::connect(server->port());
  CHECK(drops(server, peer, client_hello(!secret.empty())));
  if (!secret.empty()) {
    challenged slow(server->port());
    CHECK(drops(server, slow.peer, slow.proof()));
  }
  client_with(server->port(), secret).set("key", "value");
}

TEST_CASE("a store is not served beyond loopback by accident") {
  std::string text;
  for (const char* host : {"0.0.0.0", "::", "a-name-only-others-know.invalid"}) {
    CHECK(kind_of([&] { (void)tcp_store_server::listen(host, 0); }, &text) == errc::authentication_required);
    CHECK(contains(text, host));
    for (const char* way : {"FERRY_SECRET", "FERRY_ALLOW_UNAUTHENTICATED=1", "127.0.0.1"}) CHECK(contains(text, way));
  }
  const auto meant = tcp_store_server::listen("0.0.0.0", 0, {}, {.allow_unauthenticated = true});
  client_with(meant->port(), "").set("key", "value");
  if (!ferry::authentication_available()) return;
  const auto secured = tcp_store_server::listen("0.0.0.0", 0, {}, {.secret = right});
  client_with(secured->port(), right).set("key", "value");
}

TEST_CASE("a rendezvous takes the secret from its options, or from the environment") {
  const auto meet = [](const std::string& host, const std::string& secret = {}, bool allow = false) {
    return ferry::rendezvous({.init_method = "tcp://" + host + ":" + std::to_string(ferry_test::free_port()),
                              .rank = 0,
                              .world_size = 1,
                              .secret = secret,
                              .allow_unauthenticated = allow})
        .store;
  };
  const auto port_of = [](const std::shared_ptr<ferry::store>& store) {
    return dynamic_cast<tcp_store&>(*store).server()->port();
  };
  {
    const ferry_test::launch_environment none({});
    CHECK(kind_of([&] { (void)meet("0.0.0.0"); }) == errc::authentication_required);
    (void)meet("0.0.0.0", "", true);
    (void)meet("127.0.0.1");
  }
  {
    const ferry_test::launch_environment allowed(ferry_test::variables{{"FERRY_ALLOW_UNAUTHENTICATED", "1"}});
    (void)meet("0.0.0.0");
  }
  if (!ferry::authentication_available()) return;
  {
    const ferry_test::launch_environment given(ferry_test::variables{{"FERRY_SECRET", right}});
    const auto store = meet("0.0.0.0");
    std::string text;
    CHECK(failure(port_of(store), "", text) == errc::authentication_failed);
    client_with(port_of(store), right).set("key", "value");
    const auto own = meet("127.0.0.1", wrong);  // options take precedence
    client_with(port_of(own), wrong).set("key", "value");
  }
}

}  // namespace authentication_test
