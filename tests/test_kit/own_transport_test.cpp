// The tests that the author of a transport writes: the conformance suites over a transport that is not part of ferry.
// Uses only installed files.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <ferry/test_kit/backend_conformance.hpp>
#include <ferry/test_kit/transport_conformance.hpp>

#include "packet_transport.hpp"

namespace {

struct packet_under_test {
  using tag = packet;
  static constexpr bool crosses_processes = true;
  static std::string missing() { return ferry::transport_traits<packet>::unusable(); }
  static ferry::transport_options options() { return {}; }
  static constexpr bool bounds_flow = false;
};

struct backend_under_test {
  using tag = ferry::native_over<ferry::transport_list<packet>>;
  static std::string missing() { return ferry::transport_traits<packet>::unusable(); }
  static auto options() { return ferry::construct_rpc_backend_options<tag>(); }
};

}  // namespace

TEST_CASE("a custom transport conforms") { ferry::test_kit::transport_conformance<packet_under_test>(); }
TEST_CASE("a backend over it conforms") { ferry::test_kit::backend_conformance<backend_under_test>(); }
