// The store of an example, by the suite that every store must pass. with_redis.py starts the server.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <unistd.h>

#include <ferry/base/error.hpp>
#include <ferry/store/rendezvous.hpp>
#include <ferry/test_kit/store_conformance.hpp>

#include "redis_store.hpp"

namespace redis_store_test {

using ferry::errc;
using ferry::test_kit::contains;
using ferry::test_kit::kind_of;
using stores = ferry::store_list<redis_scheme>;

std::string server() {
  const char* path = std::getenv("REDIS");
  return path ? path : "";
}

struct redis_fixture final : ferry::test_kit::store_fixture {
  const std::string group = [] {
    static std::atomic<int> next{0};
    return fmt::format("{}-{}", ::getpid(), next++);
  }();
  static std::shared_ptr<ferry::store> open_location(const std::string& location) {
    return ferry::rendezvous(stores{}, {.init_method = location, .rank = 0, .world_size = 1}).store;
  }
  std::shared_ptr<ferry::store> open() override { return open_location(location()); }
  std::string location() override { return fmt::format("redis://{}?group={}", server(), group); }
};

TEST_CASE("redis store conformance") { ferry::test_kit::store_conformance<redis_fixture>(); }
TEST_CASE("redis store conformance over processes") {
  ferry::test_kit::store_conformance_over_processes<redis_fixture>();
}

TEST_CASE("groups do not see each other") {
  redis_fixture one;
  redis_fixture other;
  const auto a = one.open();
  const auto b = other.open();
  a->set("key", "of a");
  CHECK(b->try_get("key") == std::nullopt);
  CHECK(b->count() == 0);
}

TEST_CASE("characters of patterns in a prefix stand for themselves") {
  redis_fixture fixture;
  const auto store = fixture.open();
  for (const char* key : {"a*b", "axb", "[a]", "a", "q?", "qq", "back\\slash"}) store->set(key, "");
  CHECK(store->count("a*") == 1);
  CHECK(store->count("[a") == 1);
  CHECK(store->count("q?") == 1);
  CHECK(store->list("back\\") == std::vector<ferry::store_entry>{{"back\\slash", ""}});
}

TEST_CASE("more keys than one answer of the server has") {
  redis_fixture fixture;
  const auto store = fixture.open();
  for (int i = 0; i != 2500; ++i) store->set(fmt::format("many/{}", i), std::to_string(i));
  CHECK(store->count("many/") == 2500);
  CHECK(store->list("many/").size() == 2500);
}

// What the server does to connections, by a command of its own.
void administer(const std::string& command) {
  redisContext* const admin = ::redisConnectUnix(server().c_str());
  REQUIRE(admin);
  void* const answer = ::redisCommand(admin, command.c_str());
  CHECK(answer != nullptr);
  ::freeReplyObject(answer);
  ::redisFree(admin);
}

TEST_CASE("a connection that was lost while nothing was asked is made again") {
  redis_fixture fixture;
  const auto store = fixture.open();
  store->set("key", "value");
  administer("CLIENT KILL TYPE normal SKIPME yes");
  CHECK(store->try_get("key") == "value");
}

TEST_CASE("a wait whose connection is lost is an error that says so, and the store goes on") {
  redis_fixture fixture;
  const auto store = fixture.open();
  ferry::test_kit::counting_observer observer;
  std::string text;
  auto waiting = ferry::test_kit::start_blocking(
      observer, [&] { return kind_of([&] { return store->get("never", ferry::test_kit::plenty); }, &text); });
  while (waiting.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
    administer("CLIENT KILL TYPE pubsub");
  CHECK(waiting.get() == errc::store_unreachable);
  CHECK(contains(text, server()));
  store->set("never", "now");
  CHECK(store->get("never") == "now");
}

TEST_CASE("a server that does not answer holds up no request beyond its limit, and no close") {
  redis_fixture fixture;
  const auto store = fixture.open();
  administer("CLIENT PAUSE 3000 ALL");
  std::string text;
  CHECK(kind_of([&] { store->set("key", "value", std::chrono::milliseconds(30)); }, &text) == errc::store_timeout);
  CHECK(contains(text, "for the answer of"));
  std::atomic<bool> begun = false;
  auto asking = std::async(std::launch::async, [&] {
    begun = true;
    return kind_of([&] { store->set("key", "value", ferry::test_kit::plenty); });
  });
  while (!begun) std::this_thread::yield();
  store->close();
  CHECK(asking.get() == errc::store_failed);
}

TEST_CASE("news of one key do not keep a wait for another one beyond its limit") {
  redis_fixture fixture;
  const auto store = fixture.open();
  const auto other = fixture.open();
  std::atomic<bool> enough = false;
  std::jthread writer([&] {
    while (!enough) other->add("hot", 1);
  });
  const std::vector<std::string> keys = {"hot", "missing"};
  store->wait("hot");
  CHECK(kind_of([&] { store->wait(keys, std::chrono::milliseconds(50)); }) == errc::store_timeout);
  enough = true;
}

TEST_CASE("init methods that make no sense are refused in words") {
  const auto refused = [](const std::string& init_method, errc kind, const std::string& part) {
    CAPTURE(init_method);
    std::string text;
    CHECK(kind_of([&] { return redis_fixture::open_location(init_method); }, &text) == kind);
    CHECK_MESSAGE(contains(text, part), text);
  };
  refused("redis://127.0.0.1:6379", errc::bad_init_method, "no name");
  refused("redis://127.0.0.1:0?group=a", errc::bad_init_method, "'0' is no port");
  refused("redis://127.0.0.1:6379x?group=a", errc::bad_init_method, "'6379x' is no port");
  refused("redis://?group=a", errc::bad_init_method, "no host");
  refused("redis://127.0.0.1?group=a&colour=red", errc::bad_init_method, "colour");
  refused("redis:///no/such/socket?group=a", errc::store_unreachable, "redis-server");
}

}  // namespace redis_store_test
