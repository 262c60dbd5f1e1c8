// Where tcp listens, what it publishes, and how it reports that it cannot.

#include <doctest/doctest.h>

#include <ferry/transport/address.hpp>
#include <ferry/transport/transport.hpp>

#include <ferry/test_kit/transport_kit.hpp>
#include "base/net/socket_address.hpp"
#include "expect_error.hpp"
#include "raw_socket.hpp"

namespace tcp_listen_test {

namespace {

using namespace ferry::test_kit;

struct listening_tcp {
  std::shared_ptr<ferry::reactor> loop = test_reactor();
  std::shared_ptr<ferry::transport> over = ferry::transport_traits<ferry::tcp>::open(*loop);
  std::shared_ptr<accepting_worker> server = std::make_shared<accepting_worker>("server");

  std::vector<std::string> listen(const ferry::transport_options& options, const std::string& suggested_host = "",
                                  const std::string& name = "server") {
    return over->listen("group", name, suggested_host, options, server);
  }
  ~listening_tcp() {
    for (const auto* name : {"server", "second", "third"}) over->unlisten("group", name);
  }
};

std::uint16_t port_of(const std::string& address) { return ferry::address::parse(address).port; }
std::string host_of(const std::string& address) { return ferry::address::parse(address).host; }

}  // namespace

TEST_CASE("tcp listens on loopback by default") {
  listening_tcp tcp;
  const auto addresses = tcp.listen({});
  REQUIRE(addresses.size() == 1);
  CHECK(host_of(addresses.front()) == "127.0.0.1");
  CHECK(connect(*tcp.over, addresses.front(), hello_to("server")).opened);
}

TEST_CASE("tcp listens on the address from which the store was reached") {
  for (const auto& host : ferry::routable_addresses()) {
    listening_tcp tcp;
    ferry::transport_options options;
    expect_error(ferry::errc::authentication_required, host, [&] { tcp.listen(options, host); });
    options.allow_unauthenticated = true;
    const auto addresses = tcp.listen(options, host);
    REQUIRE(addresses.size() == 1);
    CHECK(host_of(addresses.front()) == host);
    const auto result = connect(*tcp.over, addresses.front(), hello_to("server"));
    CHECK_MESSAGE(result.opened, failure_of(result).second);
  }
}

TEST_CASE("tcp listens on a network interface given by name") {
  listening_tcp tcp;
  ferry::transport_options options;
  options.bind = "lo";
  const auto addresses = tcp.listen(options, "10.1.2.3");
  REQUIRE(addresses.size() == 1);
  CHECK(ferry::is_loopback(host_of(addresses.front())));
  CHECK(connect(*tcp.over, addresses.front(), hello_to("server")).opened);
}

TEST_CASE("tcp listens on a host name") {
  listening_tcp tcp;
  ferry::transport_options options;
  options.bind = "localhost";
  const auto addresses = tcp.listen(options);
  CHECK(ferry::is_loopback(host_of(addresses.front())));
  const auto by_name = "tcp://localhost:" + std::to_string(port_of(addresses.front()));
  const auto result = connect(*tcp.over, by_name, hello_to("server"));
  CHECK_MESSAGE(result.opened, failure_of(result).second);
}

TEST_CASE("tcp on all addresses publishes those that others can reach") {
  listening_tcp tcp;
  ferry::transport_options options;
  options.bind = "0.0.0.0";
  expect_error(ferry::errc::authentication_required, "FERRY_SECRET", [&] { tcp.listen(options); });
  options.allow_unauthenticated = true;
  const auto routable = ferry::routable_addresses();
  const auto suggested = routable.empty() ? std::string("127.0.0.1") : routable.back();
  const auto addresses = tcp.listen(options, suggested);
  REQUIRE_FALSE(addresses.empty());
  CHECK(host_of(addresses.front()) == suggested);
  if (addresses.size() > 1) {
    for (const auto& address : addresses) CHECK_FALSE(ferry::is_loopback(host_of(address)));
  }
}

TEST_CASE("tcp publishes the address given as advertise") {
  const auto published = [](const std::string& advertise) {
    listening_tcp tcp;
    ferry::transport_options options;
    options.advertise = advertise;
    return tcp.listen(options);
  };
  CHECK((published("gateway.example.com:4711") == std::vector<std::string>{"tcp://gateway.example.com:4711"}));
  CHECK((published("[2001:db8::1]:80") == std::vector<std::string>{"tcp://[2001:db8::1]:80"}));
  CHECK(host_of(published("gateway.example.com").front()) == "gateway.example.com");
  CHECK(host_of(published("2001:db8::1").front()) == "2001:db8::1");
  CHECK(host_of(published("[2001:db8::1]").front()) == "2001:db8::1");
  CHECK(port_of(published("gateway.example.com").front()) != 0);
  expect_error(ferry::errc::bad_address, "transport_options::advertise is 'gate way', which other workers cannot",
               [&] { (void)published("gate way"); });
  expect_error(ferry::errc::bad_address, "it means every address", [&] { (void)published("0.0.0.0"); });
}

TEST_CASE("tcp names the option if what it listens on is neither an address nor an interface") {
  listening_tcp tcp;
  ferry::transport_options options;
  options.bind = "no such";
  expect_error(ferry::errc::bad_address, "transport_options::bind is 'no such', which is neither",
               [&] { tcp.listen(options); });
}

TEST_CASE("a link-local address whose interface has another name here is tried on each interface") {
  using ferry::detail::link_local_on_each_interface;
  CHECK(link_local_on_each_interface("2001:db8::1", 1).empty());
  CHECK(link_local_on_each_interface("fe80::1", 1).empty());
  CHECK(link_local_on_each_interface("fe80::1%lo", 1).empty());  // one of this machine's
  CHECK(link_local_on_each_interface("gateway%nosuch0", 1).empty());
  for (const auto& each : link_local_on_each_interface("fe80::1%nosuch0", 7)) {
    CHECK(each.is_link_local());
    CHECK(each.port() == 7);
    CHECK(each.host().starts_with("fe80::1%"));
  }
}

TEST_CASE("tcp reports which port is in use") {
  const auto taken = raw_socket::listening();
  listening_tcp tcp;
  ferry::transport_options options;
  options.port = taken.port();
  expect_error(ferry::errc::address_in_use, "127.0.0.1:" + std::to_string(taken.port()), [&] { tcp.listen(options); });
  // The port is available once it is free, and the failed attempt has left nothing behind.
  options.port = 0;
  CHECK_FALSE(tcp.listen(options).empty());
}

TEST_CASE("tcp tries the ports of a range in turn") {
  // Two neighbouring ports that are in use, with the next one free.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto first = raw_socket::listening();
    if (first.port() > 65'000) continue;
    const auto port = first.port();
    try {
      const auto second = raw_socket::listening(static_cast<std::uint16_t>(port + 1));
      ferry::transport_options options;
      options.port = port;
      options.port_last = static_cast<std::uint16_t>(port + 1);
      listening_tcp tcp;
      expect_error(ferry::errc::address_in_use, std::to_string(port) + "-" + std::to_string(port + 1),
                   [&] { tcp.listen(options); });
      options.port_last = static_cast<std::uint16_t>(port + 50);
      const auto got = port_of(tcp.listen(options).front());
      CHECK(got > port + 1);
      CHECK(got <= port + 50);
      return;
    } catch (const std::runtime_error&) {  // another process has the next port
    }
  }
  FAIL("no two neighbouring free ports were found");
}

TEST_CASE("tcp refuses options that make no sense") {
  listening_tcp tcp;
  ferry::transport_options options;
  options.port = 2000;
  options.port_last = 1999;
  expect_error(ferry::errc::invalid_argument, "2000", [&] { tcp.listen(options); });
  options = {};
  options.port_last = 1999;
  expect_error(ferry::errc::invalid_argument, "1999", [&] { tcp.listen(options); });
  options = {};
  options.allow_unauthenticated = true;
  options.bind = "203.0.113.77";  // an address of no machine
  expect_error(ferry::errc::bad_address, "203.0.113.77", [&] { tcp.listen(options); });
  options.bind = "no-such-host.invalid";
  expect_error(ferry::errc::bad_address, "no-such-host.invalid", [&] { tcp.listen(options); });
}

TEST_CASE("the workers of a process share one port, which is free again after the last") {
  listening_tcp tcp;
  const auto address = tcp.listen({}).front();
  CHECK(tcp.listen({}, "", "second").front() == address);
  ferry::transport_options same;
  same.port = port_of(address);
  CHECK(tcp.listen(same, "", "third").front() == address);
  tcp.over->unlisten("group", "server");
  CHECK(tcp.over->understands(address));
  const auto result = connect(*tcp.over, address, hello_to("second"));
  CHECK(failure_of(result).second.find("worker 'server' answered") !=
        std::string::npos);  // both share one acceptor here
  tcp.over->unlisten("group", "second");
  tcp.over->unlisten("group", "third");
  (void)raw_socket::listening(port_of(address));
  // ferry itself can reuse the port, also right after another listener had it.
  CHECK(tcp.listen(same).front() == address);
}

TEST_CASE("workers that start and stop on a fixed port never find it in use") {
  listening_tcp tcp;
  ferry::transport_options options;
  options.port = port_of(tcp.listen({}).front());
  tcp.over->unlisten("group", "server");
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (const std::string name : {"server", "second"}) {
    threads.emplace_back([&, name] {
      for (int i = 0; i < 200; ++i) {
        try {
          (void)tcp.listen(options, "", name);
          tcp.over->unlisten("group", name);
        } catch (const ferry::error&) {
          ++failures;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failures == 0);
}

}  // namespace tcp_listen_test
