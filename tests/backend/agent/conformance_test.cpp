// The backend conformance suite over the native backend.

#include <doctest/doctest.h>

#include <ferry/test_kit/backend_conformance.hpp>

#include "watchdog.hpp"

namespace conformance_test {

namespace {

struct native_under_test {
  using tag = ferry::native;
  static std::string missing() { return {}; }
  static auto options() { return ferry::construct_rpc_backend_options<ferry::native>({.num_worker_threads = 4}); }
};

struct native_over_tcp_under_test {
  using tag = ferry::native_over<ferry::transport_list<ferry::tcp>>;
  static std::string missing() { return {}; }
  static auto options() { return ferry::construct_rpc_backend_options<tag>(); }
};

}  // namespace

TEST_CASE("the native backend conforms") {
  const ferry_test::watchdog limit("the conformance of the native backend");
  ferry::test_kit::backend_conformance<native_under_test>();
}
TEST_CASE("the native backend over tcp alone conforms") {
  const ferry_test::watchdog limit("the conformance of the native backend over tcp");
  ferry::test_kit::backend_conformance<native_over_tcp_under_test>();
}

}  // namespace conformance_test
