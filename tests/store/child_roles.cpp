// The roles of child processes in the tests; skipped unless selected by name.

#include <csignal>
#include <string>

#include <sys/resource.h>

#include <doctest/doctest.h>

#include <ferry/test_kit/child_process.hpp>
#include <ferry/test_kit/store_conformance.hpp>

#include "store_fixtures.hpp"

namespace child_roles {

using namespace store_test;

TEST_CASE("role: write beyond the file size limit" * doctest::skip()) {
  const auto store = open_any_location(given("FERRY_TEST_STORE"));
  store->set("before", "1");
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{64 * 1024, 64 * 1024};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::string text;
  CHECK(kind_of([&] { store->set("large", std::string(200'000, 'x')); }, &text) == ferry::errc::store_failed);
  CHECK(contains(text, "cannot write"));
  store->set("after", "2");
  CHECK(store->get("before") == "1");
}

}  // namespace child_roles
