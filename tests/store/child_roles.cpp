// What the child processes of the tests do; skipped unless asked for by name.

#include <csignal>
#include <string>

#include <sys/resource.h>

#include <doctest/doctest.h>

#include "child_process.hpp"
#include "store_conformance.hpp"
#include "store_fixtures.hpp"

using namespace store_test;

TEST_CASE("role: meet" * doctest::skip()) {
  const auto store = open_location(given("FERRY_TEST_STORE"));
  const std::string rank = given("FERRY_TEST_RANK");
  store->set("names/" + rank, "child" + rank);
  CHECK(store->get("names/0", plenty) == "parent");
  for (int i = 0; i < 100; ++i) store->add("sum", 1);
  store->wait("go", plenty);
}

TEST_CASE("role: wait for ever" * doctest::skip()) {
  const auto store = open_location(given("FERRY_TEST_STORE"));
  store->set("waiting", "");
  store->wait("never", ferry::no_timeout);
}

TEST_CASE("role: write for ever" * doctest::skip()) {
  const auto store = open_location(given("FERRY_TEST_STORE"));
  const std::string value(100'000, 'x');
  for (;;) {
    store->set("value", value);
    store->add("written", 1);
  }
}

TEST_CASE("role: write beyond the file size limit" * doctest::skip()) {
  const auto store = open_location(given("FERRY_TEST_STORE"));
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
