// The transport conformance suite over every transport of ferry.

#include <ferry/test_kit/transport_conformance.hpp>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sanitizers.hpp"

namespace conformance_test {

namespace {

struct tcp_under_test {
  using tag = ferry::tcp;
  static constexpr bool crosses_processes = true;
  static std::string missing() { return {}; }
  static ferry::transport_options options() { return {}; }
};

struct tcp_over_ipv6_under_test {
  using tag = ferry::tcp;
  static constexpr bool crosses_processes = true;
  static std::string missing() {
    const int tried = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 loopback{};
    loopback.sin6_family = AF_INET6;
    loopback.sin6_addr = in6addr_loopback;
    const bool works = tried >= 0 && ::bind(tried, reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) == 0;
    if (tried >= 0) ::close(tried);
    return works ? "" : "this machine has no IPv6 loopback address";
  }
  static ferry::transport_options options() {
    ferry::transport_options result;
    result.bind = "::1";
    return result;
  }
};

struct unix_under_test {
  using tag = ferry::unix_domain;
  static constexpr bool crosses_processes = true;
  static std::string missing() { return {}; }
  static ferry::transport_options options() { return {}; }
};

struct shm_under_test {
  using tag = ferry::shm;
  static constexpr bool crosses_processes = true;
  static std::string missing() { return ferry::transport_traits<ferry::shm>::unusable(); }
  static ferry::transport_options options() { return {}; }
};

// Large messages pass through it in a thousand pieces.
struct small_shm_under_test : shm_under_test {
  static ferry::transport_options options() {
    ferry::transport_options result;
    result.shm_ring_bytes = 16384;
    return result;
  }
};

struct busy_shm_under_test : shm_under_test {
  static ferry::transport_options options() {
    ferry::transport_options result;
    result.busy_poll = 1;
    return result;
  }
};

struct busy_unix_under_test : unix_under_test {
  static ferry::transport_options options() { return busy_shm_under_test::options(); }
};

struct inproc_under_test {
  using tag = ferry::inproc;
  static constexpr bool crosses_processes = false;
  static std::string missing() { return {}; }
  static ferry::transport_options options() { return {}; }
};

}  // namespace

TEST_CASE("tcp conforms") { ferry::test_kit::transport_conformance<tcp_under_test>(); }
TEST_CASE("tcp over IPv6 conforms") { ferry::test_kit::transport_conformance<tcp_over_ipv6_under_test>(); }
TEST_CASE("unix conforms") { ferry::test_kit::transport_conformance<unix_under_test>(); }
TEST_CASE("shm conforms") { ferry::test_kit::transport_conformance<shm_under_test>(); }
TEST_CASE("shm with small rings conforms") { ferry::test_kit::transport_conformance<small_shm_under_test>(); }
// The thread sanitizer takes two minutes for it, and sees as much in calls between processes.
TEST_CASE("shm with busy polling conforms" * doctest::skip(ferry_test::thread_sanitized)) {
  ferry::test_kit::transport_conformance<busy_shm_under_test>();
}
TEST_CASE("unix with busy polling conforms") { ferry::test_kit::transport_conformance<busy_unix_under_test>(); }
TEST_CASE("inproc conforms") { ferry::test_kit::transport_conformance<inproc_under_test>(); }

TEST_CASE("connections that are left open are destroyed with the reactor") {
  std::weak_ptr<ferry::test_kit::recorder> near_log, far_log;
  {
    const auto loop = ferry::test_kit::test_reactor();
    const auto over = ferry::transport_traits<ferry::tcp>::open(*loop);
    const auto server = std::make_shared<ferry::test_kit::accepting_worker>("server");
    const auto address = over->listen("group", "server", "", {}, server).front();
    const auto result = ferry::test_kit::connect(*over, address, ferry::test_kit::hello_to("server"));
    REQUIRE(result.opened);
    const auto log = std::make_shared<ferry::test_kit::recorder>();
    result.opened->start(log);
    near_log = log;
    far_log = server->accepted().second;
    over->unlisten("group", "server");
  }
  CHECK(near_log.expired());
  CHECK(far_log.expired());
}

}  // namespace conformance_test
