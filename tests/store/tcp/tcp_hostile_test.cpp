// Peers that violate the store protocol: the server drops them and keeps serving the others.

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>

#include <doctest/doctest.h>

#include <ferry/store/tcp_store.hpp>

#include <ferry/test_kit/store_conformance.hpp>

#include "raw_socket.hpp"
#include "tests/store/store_fixtures.hpp"

namespace tcp_hostile_test {

using namespace store_test;
using ferry::tcp_store;
using ferry::tcp_store_server;

namespace {

std::string number(std::uint64_t value, int bytes) {
  std::string out;
  for (; bytes > 0; --bytes, value >>= 8U) out.push_back(static_cast<char>(value));
  return out;
}
std::string hello() { return "FSTR" + number(1, 2) + number(0, 2 + 8) + number(99, 8); }
std::string frame(int operation, const std::string& body) {
  return number(body.size(), 4) + number(operation, 4) + body;
}
std::string text(const std::string& bytes) { return number(bytes.size(), 4) + bytes; }

struct hostile_fixture {
  std::shared_ptr<tcp_store_server> server;
  tcp_store friendly;
  explicit hostile_fixture(const ferry::tcp_store_limits& limits = {})
      : server(tcp_store_server::listen("127.0.0.1", 0, limits)),
        friendly({.host = "127.0.0.1", .port = server->port()}) {
    friendly.set("key", "value");
  }
  void check_served() { CHECK(friendly.get("key") == "value"); }
  raw_socket greeted() {
    for (;;) {  // retried if this thread was delayed and the server dropped the connection
      raw_socket peer = raw_socket::connect(server->port());
      if (peer.send(hello()) && peer.receive(32).size() == 32) return peer;
    }
  }
};

}  // namespace

TEST_CASE("garbage instead of a hello ends the connection") {
  hostile_fixture fixture;
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\0'),
                                   std::string("FSTQ"), std::string("\x16\x03\x01\x02", 4)}) {
    raw_socket peer = raw_socket::connect(fixture.server->port());
    peer.send(bytes);
    peer.wait_closed();
    fixture.check_served();
  }
}

TEST_CASE("invalid requests end the connection with a reason") {
  hostile_fixture fixture;
  const std::vector<std::string> requests = {
      number(0xffffffff, 4) + number(1, 4),                          // oversize frame
      frame(0, ""),                                                  // no such operation
      frame(10, ""),                                                 //
      frame(255, "x"),                                               //
      number(0, 4) + std::string("\x01\x00\x00\x01", 4),             // reserved bytes
      frame(1, ""),                                                  // no fields
      frame(1, number(0xffffffff, 4)),                               // a key longer than the message
      frame(1, text("") + text("v")),                                // an empty key
      frame(1, text(std::string(4097, 'k')) + text("v")),            // a key above the limit
      frame(1, text("k") + text("v") + "x"),                         // bytes left over
      frame(1, text("k") + text(std::string((16 << 20) + 1, 'v'))),  // a value above the limit
      frame(2, std::string(1, '\x03') + number(0xffffffff, 4)),      // four billion keys
      frame(2, std::string(1, '\x03') + number(70'000, 4) + std::string(400'000, 'k')),
      frame(2, std::string(1, '\x08') + number(0, 4)),    // an unknown flag
      frame(3, text("k") + number(1, 7)),                 // half a number
      frame(4, text("k") + text("a")),                    // one field short
      frame(6, text(std::string(5000, 'p')) + text("")),  //
      frame(8, text("k")),                                //
      frame(9, "x"),                                      // a cancel with a body
  };
  for (const std::string& request : requests) {
    CAPTURE(request.substr(0, 16));
    raw_socket peer = fixture.greeted();
    peer.send(request);
    peer.wait_closed();
    fixture.check_served();
  }
  raw_socket peer = fixture.greeted();
  peer.send(frame(77, ""));
  const std::string reply = peer.receive(10);
  REQUIRE(reply.size() == 10);
  CHECK(reply[4] == 3);  // error
  CHECK(static_cast<unsigned char>(reply[8]) + 256 * reply[9] == static_cast<int>(ferry::errc::protocol_error));
}

TEST_CASE("a second request while the first one waits ends the connection; a late cancel does not") {
  hostile_fixture fixture;
  const std::string wait_for_ever = frame(2, std::string(1, '\x01') + number(1, 4) + text("never"));
  {
    raw_socket peer = fixture.greeted();
    peer.send(wait_for_ever + frame(7, text("")));
    peer.wait_closed();
  }
  raw_socket peer = fixture.greeted();
  peer.send(frame(9, "") + frame(9, "") + wait_for_ever + frame(9, "") + frame(7, text("")));
  // cancelled: one key is missing, one is named; then the count.
  CHECK(peer.receive(8 + 4 + 4 + 4 + 5) == number(17, 4) + number(2, 4) + number(1, 4) + number(1, 4) + text("never"));
  CHECK(peer.receive(16) == frame(0, number(1, 8)));
  fixture.check_served();
}

TEST_CASE("pipelined requests are answered in order") {
  hostile_fixture fixture;
  raw_socket peer = fixture.greeted();
  std::string all;
  std::string replies;
  for (int i = 1; i <= 500; ++i) {
    all += frame(3, text("n") + number(1, 8));
    replies += frame(0, number(static_cast<std::uint64_t>(i), 8));
  }
  peer.send(all);
  CHECK((peer.receive(replies.size()) == replies));
}

TEST_CASE("clients that disconnect leave no state behind") {
  hostile_fixture fixture;
  const std::size_t before = fixture.server->connections();
  for (int i = 0; i < 50; ++i) {
    raw_socket peer = fixture.greeted();
    peer.send(frame(2, std::string(1, '\x01') + number(1, 4) + text("never")));
    if (i % 2 == 0) peer.send("\x10");  // half a header
  }
  {
    raw_socket half_message = fixture.greeted();
    half_message.send(frame(1, text("half") + text("message")).substr(0, 20));
  }
  // The server notices each disconnection separately; drain waits for the last one.
  tcp_store host({.host = "127.0.0.1", .server = std::move(fixture.server)});
  fixture.friendly.close();
  CHECK(host.drain(plenty));
  // It counts only clients that have sent a hello.
  const auto limit = std::chrono::steady_clock::now() + plenty;
  while (host.server()->connections() > before && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  CHECK(host.server()->connections() <= before);
  CHECK(host.try_get("half") == std::nullopt);
  host.set("never", "now");
}

TEST_CASE("deliberately slow peers are dropped") {
  hostile_fixture fixture({.message_timeout = 50ms});
  raw_socket silent = raw_socket::connect(fixture.server->port());
  raw_socket half_hello = raw_socket::connect(fixture.server->port());
  half_hello.send(hello().substr(0, 5));
  raw_socket half_frame = fixture.greeted();
  half_frame.send(number(100, 4));
  raw_socket drip = fixture.greeted();
  const std::string request = frame(1, text("drip") + text(std::string(1 << 20, 'x')));
  std::size_t sent = 0;
  while (sent < request.size() && drip.send(request.substr(sent, 1))) ++sent;  // one byte at a time
  CHECK(sent < request.size());
  silent.wait_closed();
  half_hello.wait_closed();
  half_frame.wait_closed();
  fixture.check_served();  // idle time between messages is allowed

  // One that sends requests and never reads the answers.
  fixture.friendly.set("page", std::string(4096, 'x'));
  raw_socket deaf = fixture.greeted();
  const std::string get = frame(2, std::string(1, '\x02') + number(1, 4) + text("page"));
  while (deaf.send(get)) {
  }
  fixture.check_served();
}

TEST_CASE("a flood of connections does not keep clients out") {
  hostile_fixture fixture({.max_connections = 20});
  std::vector<raw_socket> flood;
  for (int i = 0; i < 200; ++i) flood.push_back(raw_socket::connect(fixture.server->port()));
  fixture.check_served();
  {
    tcp_store another({.host = "127.0.0.1", .port = fixture.server->port()});
    CHECK(another.get("key") == "value");
  }
  CHECK(fixture.server->connections() <= 20 + 64);
  flood.front().wait_closed();  // the oldest was closed first
}

TEST_CASE("real clients above the limit get the reason") {
  hostile_fixture fixture({.max_connections = 2});
  const tcp_store second({.host = "127.0.0.1", .port = fixture.server->port()});
  std::string message;
  CHECK(kind_of([&] { tcp_store({.host = "127.0.0.1", .port = fixture.server->port(), .limit = 500ms}); }, &message) ==
        ferry::errc::store_unreachable);
  CAPTURE(message);
  CHECK(contains(message, "as many connections"));
  fixture.check_served();
}

TEST_CASE("unfinished messages are bounded in total") {
  hostile_fixture fixture({.max_value_bytes = 1 << 20, .max_total_bytes = 4 << 20});
  std::vector<raw_socket> peers;
  const std::string most_of_it = frame(1, text("k") + text(std::string(1 << 20, 'x'))).substr(0, 1 << 20);
  for (int i = 0; i < 16; ++i) {
    peers.push_back(fixture.greeted());
    peers.back().send(most_of_it);
  }
  std::vector<pollfd> all;
  for (const raw_socket& each : peers) all.push_back({each.descriptor(), POLLIN, 0});
  CHECK(::poll(all.data(), all.size(), -1) > 0);  // some are dropped
  fixture.check_served();
}

TEST_CASE("random bytes after the hello") {
  hostile_fixture fixture;
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    raw_socket peer = fixture.greeted();
    std::string bytes;
    for (int frames = 0; frames < 4; ++frames) {
      std::string body(random() % 40, '\0');
      for (char& each : body) each = static_cast<char>(random() % 4 == 0 ? random() : random() % 8);
      bytes += frame(static_cast<int>(random() % 11), body);
    }
    peer.send(bytes);
    if (round % 3 == 0) peer.send(number(random(), 4));
  }
  fixture.check_served();
}

}  // namespace tcp_hostile_test
