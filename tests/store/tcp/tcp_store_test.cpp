#include <ferry/store/tcp_store.hpp>

#include <chrono>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/test_kit/child_process.hpp>
#include <ferry/test_kit/store_conformance.hpp>

#include "ports.hpp"
#include "printed_time.hpp"
#include "raw_socket.hpp"
#include "tests/store/store_fixtures.hpp"

namespace tcp_store_test {

using namespace store_test;
using ferry::tcp_store;
using ferry::tcp_store_server;
using ferry_test::free_port;

namespace {

tcp_store client_of(std::uint16_t port, ferry::timeout limit = {}) {
  return tcp_store({.host = "127.0.0.1", .port = port, .limit = limit});
}

void put_number(std::string& out, std::uint64_t value, int bytes) {
  for (; bytes > 0; --bytes, value >>= 8U) out.push_back(static_cast<char>(value));
}

std::string server_hello(std::uint64_t id, std::uint16_t version = 1, std::uint16_t status = 0) {
  std::string hello = "FSTR";
  put_number(hello, version, 2);
  put_number(hello, status, 2);
  put_number(hello, 0, 8);
  put_number(hello, id, 8);
  put_number(hello, 4096, 4);
  put_number(hello, 1 << 20, 4);
  return hello;
}

}  // namespace

TEST_CASE("a port in use is named") {
  const raw_socket taken = raw_socket::listen();
  std::string text;
  CHECK(kind_of([&] { return tcp_store_server::listen("127.0.0.1", taken.port()); }, &text) ==
        ferry::errc::address_in_use);
  CHECK(contains(text, "127.0.0.1:" + std::to_string(taken.port())));
}

TEST_CASE("an unreachable store is named with the time waited and the reason") {
  const std::uint16_t port = free_port();
  std::string text;
  const auto began = std::chrono::steady_clock::now();
  CHECK(kind_of([&] { client_of(port, 500ms); }, &text) == ferry::errc::store_unreachable);
  CHECK(contains(text, "127.0.0.1:" + std::to_string(port)));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  const double reported = ferry_test::seconds_behind("waited ", text);
  CHECK_MESSAGE(reported > 0, text);
  CHECK_MESSAGE(reported <= took.count() + 0.001, text);  // rounded
  CHECK(contains(text, "refused"));
  CHECK(kind_of([&] { tcp_store({.host = "no-such-host.invalid", .port = 1, .limit = 30ms}); }, &text) ==
        ferry::errc::store_unreachable);
  CHECK(contains(text, "no-such-host.invalid"));
  CHECK(kind_of([&] { tcp_store({.host = "", .port = 1}); }) == ferry::errc::bad_address);
  CHECK(kind_of([&] { tcp_store({.host = "127.0.0.1"}); }) == ferry::errc::bad_address);
}

TEST_CASE("the server may start after its clients") {
  const std::uint16_t port = free_port();
  counting_observer observer;
  auto early = start_blocking(observer, [&] { return client_of(port, plenty).get("hello", plenty); });
  const auto server = tcp_store_server::listen("127.0.0.1", port);
  client_of(port).set("hello", "at last");
  CHECK(early.get() == "at last");
}

TEST_CASE("another protocol version is an error with both versions, on both sides") {
  raw_socket other = raw_socket::listen();
  std::thread future_server([&] {
    raw_socket peer = other.accept();
    peer.receive(24);
    peer.send(server_hello(1, 7, 1));
  });
  std::string text;
  CHECK(kind_of([&] { client_of(other.port()); }, &text) == ferry::errc::version_mismatch);
  CHECK(contains(text, "version 7"));
  CHECK(contains(text, "this program 1"));
  future_server.join();

  const auto server = tcp_store_server::listen("127.0.0.1", 0);
  raw_socket future_client = raw_socket::connect(server->port());
  future_client.send(std::string("FSTR\x07\0", 6));
  const std::string hello = future_client.receive(32);
  REQUIRE(hello.size() == 32);
  CHECK(hello.substr(0, 8) == std::string("FSTR\x01\0\x01\0", 8));
  future_client.wait_closed();
}

TEST_CASE("another service on the port is distinguished from a store") {
  raw_socket other = raw_socket::listen();
  std::thread web_server([&] { other.accept().send("HTTP/1.1 400 Bad Request\r\n\r\n"); });
  std::string text;
  CHECK(kind_of([&] { client_of(other.port()); }, &text) == ferry::errc::handshake_failed);
  CHECK(contains(text, std::to_string(other.port())));
  web_server.join();

  // A service that never sends anything.
  CHECK(kind_of([&] { client_of(other.port(), 30ms); }, &text) == ferry::errc::store_unreachable);
  CHECK(contains(text, "no answer to the hello"));
}

TEST_CASE("servers of one process at one address are shared") {
  const std::uint16_t port = free_port();
  auto first = tcp_store_server::listen("127.0.0.1", port);
  auto second = tcp_store_server::listen("127.0.0.1", port);
  CHECK(first == second);
  tcp_store client = client_of(port);
  client.set("k", "v");
  first.reset();
  CHECK(client.get("k") == "v");
  second.reset();
  CHECK(kind_of([&] { return client.get("k"); }) == ferry::errc::store_unreachable);
  const auto third = tcp_store_server::listen("localhost", port);
  CHECK(client_of(port).count() == 0);
  // The old client finds a server without the content of the old one.
  CHECK(kind_of([&] { return client.get("k"); }) == ferry::errc::store_failed);
  const auto anywhere = tcp_store_server::listen("127.0.0.1", 0);
  CHECK(anywhere != tcp_store_server::listen("127.0.0.1", 0));
  CHECK(anywhere == tcp_store_server::listen("127.0.0.1", anywhere->port()));
}

TEST_CASE("a server that admits no more clients is not shared, its port is free for the next one") {
  const std::uint16_t port = free_port();
  std::weak_ptr<tcp_store_server> first = tcp_store_server::listen("127.0.0.1", port);
  CHECK(first.expired());
  auto server = tcp_store_server::listen("127.0.0.1", port);
  first = server;
  tcp_store host({.host = "127.0.0.1", .port = port, .server = std::move(server)});
  host.set("group", "first");
  host.admit_no_more();
  const auto second = tcp_store_server::listen("127.0.0.1", port);
  CHECK(second != first.lock());
  CHECK(client_of(port).count() == 0);
  CHECK(host.get("group") == "first");
  CHECK(tcp_store_server::listen("127.0.0.1", port) == second);
}

TEST_CASE("opened and closed by many threads at once, one address has one server") {
  const std::uint16_t port = free_port();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) CHECK(tcp_store_server::listen("127.0.0.1", port)->port() == port);
    });
  }
  for (std::thread& each : threads) each.join();
}

TEST_CASE("waits end promptly when the server ends") {
  auto server = tcp_store_server::listen("127.0.0.1", 0);
  tcp_store client = client_of(server->port());
  counting_observer observer;
  auto waiting = start_blocking(observer, [&] { return kind_of([&] { return client.get("never", plenty); }); });
  server.reset();
  CHECK(waiting.get() == ferry::errc::store_unreachable);
}

TEST_CASE("the local address is that of the connection; IPv6 works") {
  const auto server = tcp_store_server::listen("127.0.0.1", 0);
  CHECK(server->address() == "127.0.0.1");
  CHECK(client_of(server->port()).local_address() == "127.0.0.1");
  const auto all = tcp_store_server::listen("a-name-only-others-know.invalid", 0, {}, {.allow_unauthenticated = true});
  CHECK((all->address() == "::" || all->address() == "0.0.0.0"));
  // The server's own process reaches it whether or not the name can be resolved here.
  tcp_store host({.host = "a-name-only-others-know.invalid", .server = all});
  host.set("k", "v");
  CHECK(client_of(all->port()).get("k") == "v");
  if (all->address() == "::") {
    tcp_store v6({.host = "::1", .port = all->port()});
    CHECK(v6.get("k") == "v");
    CHECK(v6.local_address() == "::1");
    CHECK(contains(v6.describe(), "[::1]:"));
  }
}

TEST_CASE("drain waits until the other clients have gone") {
  auto server = tcp_store_server::listen("127.0.0.1", 0);
  tcp_store host({.host = "127.0.0.1", .server = std::move(server)});
  CHECK(host.drain(plenty));
  {
    tcp_store other = client_of(host.server()->port());
    CHECK_FALSE(host.drain(10ms));
    CHECK(other.drain(plenty));  // no other client needs it
    counting_observer observer;
    auto draining = start_blocking(observer, [&] { return host.drain(plenty); });
    other.set("last", "word");
    other.close();
    CHECK(draining.get());
  }
  tcp_store other = client_of(host.server()->port());
  counting_observer observer;
  auto draining = start_blocking(observer, [&] { return kind_of([&] { return host.drain(plenty); }); });
  host.close();
  CHECK(draining.get() == ferry::errc::store_failed);
}

TEST_CASE("a connection that breaks: requests are repeated where that is safe, else the outcome is unknown") {
  raw_socket listener = raw_socket::listen();
  std::thread flaky([&] {
    // Each connection completes the handshake, takes a request, and closes without an answer; the second one answers a
    // set.
    for (int i = 0; i < 3; ++i) {
      raw_socket peer = listener.accept();
      peer.receive(24);
      peer.send(server_hello(42));
      peer.receive(1);
      if (i == 1) {
        peer.receive(8 + 4 + 3 + 4 + 1 - 1);
        peer.send(std::string(8, '\0'));
        peer.receive(1);  // the next request
      }
    }
    raw_socket peer = listener.accept();
    peer.receive(24);
    peer.send(server_hello(43));
    peer.receive(1);
  });
  tcp_store client = client_of(listener.port());
  client.set("key", "v");  // the first connection breaks, the second answers
  std::string text;
  CHECK(kind_of([&] { client.add("key", 1); }, &text) == ferry::errc::store_failed);
  CHECK(contains(text, "unknown"));
  CHECK(kind_of([&] { client.compare_set("key", "", "v"); }) == ferry::errc::store_failed);
  CHECK(kind_of([&] { client.set("key", "w"); }, &text) == ferry::errc::store_failed);
  CHECK(contains(text, "restarted"));
  client.close();
  flaky.join();
}

TEST_CASE("invalid replies are errors") {
  const auto answered = [](const std::string& reply) {
    raw_socket listener = raw_socket::listen();
    std::thread liar([&] {
      raw_socket peer = listener.accept();
      peer.receive(24);
      peer.send(server_hello(42));
      peer.receive(8);
      peer.send(reply);
      peer.wait_closed();
    });
    ferry::errc kind{};
    {
      tcp_store client = client_of(listener.port());
      client.set_default_timeout(plenty);
      kind = kind_of([&] { return client.try_get("key"); });
    }
    liar.join();
    return kind;
  };
  CHECK(answered(std::string("\xff\xff\xff\xff\0\0\0\0", 8)) == ferry::errc::protocol_error);
  CHECK(answered(std::string("\0\0\0\0\x09\0\0\0", 8)) == ferry::errc::protocol_error);
  CHECK(answered(std::string("\0\0\0\0\0\0\0\x01", 8)) == ferry::errc::malformed);
  CHECK(answered(std::string("\x04\0\0\0\0\0\0\0\xff\xff\xff\xff", 12)) == ferry::errc::malformed);
  CHECK(answered(std::string("\0\0\0\0\0\0\0\0", 8)) == ferry::errc::malformed);
}

TEST_CASE("a full store refuses writes and continues") {
  const auto server = tcp_store_server::listen("127.0.0.1", 0, {.max_value_bytes = 1000, .max_total_bytes = 2500});
  tcp_store client = client_of(server->port());
  CHECK(client.max_value_bytes() == 1000);
  CHECK(kind_of([&] { client.set("k", std::string(1001, 'x')); }) == ferry::errc::limit_exceeded);
  client.set("a", std::string(1000, 'x'));
  client.set("b", std::string(1000, 'x'));
  std::string text;
  CHECK(kind_of([&] { client.set("c", std::string(1000, 'x')); }, &text) == ferry::errc::store_failed);
  CHECK(contains(text, "full"));
  client.set("a", std::string(1000, 'y'));  // replacing needs no more space
  CHECK(client.erase("b"));
  client.set("c", std::string(1000, 'x'));
}

TEST_CASE("a list longer than a page arrives whole") {
  tcp_fixture fixture;
  const auto store = fixture.open();
  for (int i = 0; i < 100; ++i) store->set("page/" + std::to_string(1000 + i), std::string(50'000, 'x'));
  const auto all = store->list("page/");
  REQUIRE(all.size() == 100);
  CHECK(all[99].key == "page/1099");
  CHECK(all[50].value.size() == 50'000);
}

TEST_CASE("more keys than fit in one message") {
  tcp_fixture fixture;
  const auto store = fixture.open();
  std::vector<std::string> keys;
  for (int i = 0; i < 600; ++i) {
    keys.push_back(std::string(3000, 'k') + std::to_string(i));
    store->set(keys.back(), std::to_string(i));
  }
  const auto values = store->get(keys);
  REQUIRE(values.size() == 600);
  CHECK(values[599] == "599");
  store->wait(keys);
}

TEST_CASE("many waiting clients need no threads at the server") {
  tcp_fixture fixture;
  constexpr int clients = 200;
  std::vector<raw_socket> waiting;
  std::string hello = "FSTR";
  put_number(hello, 1, 2);
  put_number(hello, 0, 18);
  std::string get;
  put_number(get, 1 + 4 + 4 + 1, 4);
  put_number(get, 2, 4);
  put_number(get, 3, 1);
  put_number(get, 1, 4);
  put_number(get, 1, 4);
  get += "k";
  for (int i = 0; i < clients; ++i) {
    waiting.push_back(raw_socket::connect(fixture.server->port()));
    REQUIRE(waiting.back().send(hello + get));
    REQUIRE(waiting.back().receive(32).size() == 32);
  }
  CHECK(fixture.server->connections() == clients);
  fixture.open()->set("k", "now");
  for (raw_socket& each : waiting) CHECK(each.receive(8 + 4 + 3) == std::string("\x07\0\0\0\0\0\0\0\x03\0\0\0now", 15));
}

TEST_CASE("waiting costs no processor time") {
  tcp_fixture fixture;
  const auto store = fixture.open();
  const auto used = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  const auto before = used();
  CHECK(kind_of([&] { return store->get("never", 1500ms); }) == ferry::errc::store_timeout);
  CHECK(used() - before < 750ms);  // a spinning thread would use 1500
}

}  // namespace tcp_store_test
