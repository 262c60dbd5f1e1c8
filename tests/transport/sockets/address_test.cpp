#include <ferry/transport/address.hpp>

#include <doctest/doctest.h>

#include <string>

#include "expect_error.hpp"

namespace address_test {

TEST_CASE("addresses survive the round trip through text") {
  for (const std::string text : {"tcp://10.0.0.2:4711", "tcp://node-7.cluster.local:1", "tcp://[::1]:65535",
                                 "tcp://[fe80::1%eth0]:80", "tcp://[fe80::fc00:fffe:1%en_p0.5]:80",
                                 "unix:@ferry-12-abc", "unix:/run/ferry.sock", "shm:@ferry-12-abc", "inproc:12-abc"}) {
    CHECK(ferry::address::parse(text).to_string() == text);
  }
  const auto scoped = ferry::address::parse("tcp://[fe80::1%eth0]:80");
  CHECK(scoped.scheme == "tcp");
  CHECK(scoped.host == "fe80::1%eth0");
  CHECK(scoped.port == 80);
  CHECK((ferry::host_port::parse("[::1]:5") == ferry::host_port{"::1", 5}));
}

TEST_CASE("invalid addresses are rejected with the text and the reason") {
  const auto refused = [](const std::string& text, const std::string& reason) {
    expect_error(ferry::errc::bad_address, "'" + text + "'", [&] { (void)ferry::address::parse(text); });
    expect_error(ferry::errc::bad_address, reason, [&] { (void)ferry::address::parse(text); });
  };
  refused("", "must begin with");
  refused("http://a:1", "must begin with");
  refused("tcp:/a:1", "tcp://host:port");
  refused("tcp://a", "the port is missing");
  refused("tcp://:1", "the host is missing");
  refused("tcp://a:", "1 to 65535");
  refused("tcp://a:0", "1 to 65535");
  refused("tcp://a:65536", "1 to 65535");
  refused("tcp://a:1x", "1 to 65535");
  refused("tcp://a:1/path", "1 to 65535");
  refused("tcp://::1:80", "brackets");
  refused("tcp://[::1]", "must follow");
  refused("tcp://[::1:80", "not closed");
  refused("tcp://[name]:80", "IPv6");
  refused("tcp://[fe80::1%]:80", "IPv6");
  refused("tcp://[fe80::1%a b]:80", "IPv6");
  refused("tcp://a b:80", "characters");
  refused("unix:name", "unix:@");
  refused("unix:@", "unix:@");
  refused("unix:@" + std::string(107, 'x'), "107");
  refused("inproc:", "inproc:token");
  expect_error(ferry::errc::bad_address, "...'", [] { (void)ferry::address::parse(std::string(10'000, 'x')); });
}

TEST_CASE("loopback, unspecified and IPv6 literals are distinguished") {
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"})
    CHECK(ferry::is_loopback(host));
  for (const char* host : {"10.0.0.1", "::", "0.0.0.0", "::2", "fe80::1%eth0", "node", ""})
    CHECK_FALSE(ferry::is_loopback(host));
  CHECK(ferry::is_unspecified("0.0.0.0"));
  CHECK(ferry::is_unspecified("::"));
  CHECK_FALSE(ferry::is_unspecified("::1"));
  CHECK(ferry::is_ipv6_literal("fe80::1%eth0"));
  CHECK_FALSE(ferry::is_ipv6_literal("10.0.0.1"));
}

TEST_CASE("the interfaces of this machine are known by name") {
  const auto found = ferry::interface_addresses("lo");
  REQUIRE_FALSE(found.empty());
  CHECK(ferry::is_loopback(found.front()));
  CHECK(ferry::interface_addresses("no-such-if").empty());
  for (const auto& host : ferry::routable_addresses()) CHECK_FALSE(ferry::is_loopback(host));
}

TEST_CASE("a worker listens where it reached the store, but not on the loopback address of its own name") {
  CHECK(ferry::choose_listen_host("node7", "10.0.0.2") == "10.0.0.2");
  CHECK(ferry::choose_listen_host("127.0.0.1", "127.0.0.1") == "127.0.0.1");
  CHECK(ferry::choose_listen_host("localhost", "::1") == "::1");
  CHECK(ferry::choose_listen_host("", "127.0.0.1") == "127.0.0.1");
  const auto routable = ferry::routable_addresses();
  // "node7" is this machine itself: 127.0.1.1 in its /etc/hosts.
  CHECK(ferry::choose_listen_host("node7", "127.0.1.1") == (routable.empty() ? "127.0.1.1" : routable.front()));
}

}  // namespace address_test
