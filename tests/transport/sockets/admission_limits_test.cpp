// Slow, numerous or greedy peers take no resources from well-behaved ones.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <thread>
#include <vector>

#include <poll.h>

#include <ferry/base/secret.hpp>
#include <ferry/transport/address.hpp>

#include <ferry/test_kit/transport_kit.hpp>
#include "printed_time.hpp"
#include "raw_socket.hpp"
#include "transport/sockets/handshake.hpp"

namespace admission_limits_test {

namespace {

using namespace ferry::test_kit;
using namespace std::chrono_literals;
namespace d = ferry::detail;

/// Expects its peers at 127.0.0.9.
struct expecting_worker : accepting_worker {
  using accepting_worker::accepting_worker;
  bool expects(std::string_view host) noexcept override { return host == "127.0.0.9"; }
};

struct limited_tcp {
  captured_log log;
  std::shared_ptr<ferry::reactor> loop = test_reactor();
  std::shared_ptr<ferry::transport> over = ferry::transport_traits<ferry::tcp>::open(*loop);
  std::shared_ptr<accepting_worker> server = std::make_shared<expecting_worker>("server");
  ferry::transport_options options;
  std::string address;

  explicit limited_tcp(const ferry::transport_options& chosen)
      : options(chosen), address(over->listen("group", "server", "", options, server).front()) {}
  ~limited_tcp() { over->unlisten("group", "server"); }

  [[nodiscard]] raw_socket raw_peer() const { return raw_socket::connected(ferry::address::parse(address).port); }
  ferry::connect_result connect() { return ferry::test_kit::connect(*over, address, hello_to("server"), options); }
};

/// Sends a byte of `bytes` every few milliseconds until the other end closes; false if it never does.
bool trickle(const raw_socket& peer, std::span<const std::byte> bytes) {
  const auto begun = std::chrono::steady_clock::now();
  for (std::size_t at = 0;; ++at) {
    if (at + 1 < bytes.size()) peer.send(bytes.subspan(at, 1));
    if (peer.closes_within(10ms)) return true;
    if (std::chrono::steady_clock::now() - begun > patience) return false;
  }
}

}  // namespace

TEST_CASE("a handshake that trickles in is dropped at its timeout") {
  ferry::transport_options options;
  options.handshake_timeout = 3s;  // also applies to the last handshake here, which may be slow
  if (ferry::authentication_available()) options.secret = "a secret";
  limited_tcp tcp(options);
  const d::nonce once = d::fresh_nonce();
  const auto hello = d::encode_hello(hello_to("server"), options.secret.empty() ? nullptr : &once);
  CHECK(trickle(tcp.raw_peer(), hello));
  CHECK(tcp.log.wait_for_line("its handshake did not end in time"));
  if (!options.secret.empty()) {
    const auto peer = tcp.raw_peer();
    peer.send(hello);
    auto proof = d::encode_hello(hello_to("server"));  // any body will do: it is never completed
    proof.resize(4096);
    proof[16] = std::byte{0xff};
    proof[17] = std::byte{0x0f};
    CHECK(trickle(peer, proof));
    CHECK(tcp.log.count("its handshake did not end in time") == 2);
  }
  CHECK(tcp.server->accepted_count() == 0);
  CHECK(tcp.connect().opened);
}

TEST_CASE("the connecting end applies the handshake timeout, too") {
  ferry::transport_options options;
  options.handshake_timeout = 200ms;
  limited_tcp tcp(options);
  const auto silent = raw_socket::listening();
  const auto began = std::chrono::steady_clock::now();
  const auto [kind, text] = failure_of(ferry::test_kit::connect(
      *tcp.over, "tcp://127.0.0.1:" + std::to_string(silent.port()), hello_to("server"), options));
  CHECK(kind == ferry::errc::connect_failed);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  const double told = ferry_test::seconds_behind("no answer within ", text);
  CHECK_MESSAGE(told >= 0.2, text);
  CHECK_MESSAGE(told <= took.count() + 0.05, text);  // rounded
}

TEST_CASE("handshakes over the limit wait, and well-behaved peers are still admitted") {
  ferry::transport_options options;
  options.handshake_timeout = 1s;
  options.max_handshakes = 4;
  limited_tcp tcp(options);
  std::vector<raw_socket> idle;
  for (int i = 0; i != 20; ++i) idle.push_back(tcp.raw_peer());
  CHECK(ferry::test_kit::connect(*tcp.over, tcp.address, hello_to("server")).opened);
  for (const auto& each : idle) CHECK(each.wait_closed());
  CHECK(tcp.connect().opened);
}

TEST_CASE("a thousand silent connections a second do not keep other peers out") {
  ferry::transport_options options;
  if (ferry::authentication_available()) options.secret = "a secret";
  limited_tcp tcp(options);
  constexpr int enough = 3000;
  std::atomic<int> made{0};
  std::atomic<bool> over{false};
  std::thread flood([&] {
    // Connections stay open at this end, at most as many as a usual limit on descriptors allows.
    std::deque<raw_socket> idle;
    const auto begun = std::chrono::steady_clock::now();
    while (!over) {
      while (!over && made < (std::chrono::steady_clock::now() - begun) / 1ms) {
        idle.push_back(tcp.raw_peer());
        if (idle.size() > 700) idle.pop_front();
        ++made;
      }
      std::this_thread::sleep_for(1ms);  // the pace of the flood
    }
  });
  std::chrono::duration<double> longest{};
  int admitted = 0;
  int refused = 0;
  while (refused == 0 && (made < enough || admitted < 3)) {
    const auto begun = std::chrono::steady_clock::now();
    tcp.connect().opened ? ++admitted : ++refused;
    longest = std::max<std::chrono::duration<double>>(longest, std::chrono::steady_clock::now() - begun);
  }
  over = true;
  flood.join();
  MESSAGE(made, " silent connections, ", admitted, " handshakes, the longest ", longest.count(), " s");
  CHECK(refused == 0);  // without a rule about whom to drop, none gets in
}

TEST_CASE("peers that stop during the handshake make room for others") {
  ferry::transport_options options;
  options.max_handshakes = 4;
  limited_tcp tcp(options);
  const auto hello = d::encode_hello(hello_to("server"));
  std::vector<raw_socket> stopped;
  for (int i = 0; i != 12; ++i) {
    stopped.push_back(tcp.raw_peer());
    if (i % 2 == 1) stopped.back().send(std::span(hello).first(20));
  }
  const auto begun = std::chrono::steady_clock::now();
  CHECK(tcp.connect().opened);
  CHECK(std::chrono::steady_clock::now() - begun < 10s);  // the handshake timeout
}

TEST_CASE("the handshakes of members, and of addresses with few of them, are dropped last") {
  ferry::transport_options options;
  options.max_handshakes = 5;
  options.handshake_timeout = 60s;
  limited_tcp tcp(options);
  const auto from = [&](unsigned host) {
    return raw_socket::connected_from(host, ferry::address::parse(tcp.address).port);
  };
  const std::array members{from(9), from(9), from(9)};
  const auto lone = from(4);
  const auto greedy = from(5);
  const auto hello = d::encode_hello(hello_to("server"));
  const auto second = from(5);  // the first handshake of that address makes room
  CHECK(greedy.wait_closed());
  second.send(std::span(hello).first(20));
  const auto third = from(5);  // one each: the one that has said nothing, and is the oldest, makes room
  CHECK(lone.wait_closed());
  CHECK_FALSE(second.closes_within(0ms));
  for (const auto& each : members) CHECK_FALSE(each.closes_within(0ms));
  CHECK_FALSE(third.closes_within(0ms));
}

TEST_CASE("a worker accepts max_connections connections and reports the limit to the next peer") {
  for (const bool secured : {false, true}) {
    if (secured && !ferry::authentication_available()) continue;
    ferry::transport_options options;
    options.max_connections = 2;
    if (secured) options.secret = "a secret";
    limited_tcp tcp(options);
    std::vector<std::pair<std::shared_ptr<ferry::connection>, std::shared_ptr<recorder>>> open;
    const auto enter = [&] {
      auto result = tcp.connect();
      if (!result.opened) return failure_of(result);
      open.emplace_back(result.opened, std::make_shared<recorder>());
      open.back().first->start(open.back().second);
      return failure_of(result);
    };
    (void)enter();
    (void)enter();
    REQUIRE(open.size() == 2);
    (void)tcp.server->accepted(1);
    for (int i = 0; i != 3; ++i) {
      const auto [kind, text] = enter();
      CHECK_MESSAGE(kind == ferry::errc::resource_exhausted, text);
      CHECK_MESSAGE(text.find("has 2 open connections, which is its max_connections") != text.npos, text);
    }
    CHECK(tcp.log.wait_for_line("resource_exhausted: the worker 'server' has 2 open connections"));
    // A closed connection frees its slot once the worker has noticed.
    open.front().first->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    CHECK(tcp.server->accepted(0).second->wait_closed());
    CHECK(open.front().second->wait_closed());
    const auto begun = std::chrono::steady_clock::now();
    while (open.size() == 2 && std::chrono::steady_clock::now() - begun < patience) (void)enter();
    CHECK(open.size() == 3);
    CHECK(enter().first == ferry::errc::resource_exhausted);
    for (auto& [each, log] : open) each->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    for (auto& [each, log] : open) CHECK(log->wait_closed());
  }
}

TEST_CASE("peers that connect and disconnect keep no slots and write few log lines") {
  ferry::transport_options options;
  options.max_connections = 4;
  options.max_handshakes = 8;
  limited_tcp tcp(options);
  const auto hello = d::encode_hello(hello_to("unknown"));
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i != 300; ++i) {
    const auto peer = tcp.raw_peer();
    if (i % 3 == 1) peer.send(std::span(hello).first(10));
    if (i % 3 == 2) peer.send(hello);
  }
  CHECK(tcp.connect().opened);
  // At most 20 warnings in 5 seconds, and the number of suppressed ones.
  const auto windows = 2 + (std::chrono::steady_clock::now() - begun) / std::chrono::seconds(5);
  CHECK(static_cast<long>(tcp.log.count("")) <= 22 * windows);
}

}  // namespace admission_limits_test
