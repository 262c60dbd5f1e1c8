#include <ferry/store/rendezvous.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/store/hash_store.hpp>
#include <ferry/store/tcp_store.hpp>

#include <ferry/test_kit/store_conformance.hpp>

#include "launch_environment.hpp"
#include "ports.hpp"
#include "tests/store/store_fixtures.hpp"
#include "tests/store/tcp/raw_socket.hpp"

namespace rendezvous_test {

using namespace store_test;
using ferry::errc;
using ferry::rendezvous;
using ferry_test::launch_environment;

namespace {

/// The error of a rendezvous, with its text.
struct failure {
  errc kind;
  std::string text;
};
failure fails(const std::string& init_method, std::optional<int> rank = std::nullopt,
              std::optional<int> world_size = std::nullopt) {
  failure found{};
  found.kind = kind_of([&] { return rendezvous(init_method, rank, world_size, 100ms); }, &found.text);
  return found;
}
std::string free_port(int count = 1) { return std::to_string(ferry_test::free_port(count)); }

struct plain_scheme {};
struct own_scheme {};
std::shared_ptr<ferry::hash_store> own_store() {
  static const auto store = std::make_shared<ferry::hash_store>();
  return store;
}

}  // namespace

}  // namespace rendezvous_test

template <>
struct ferry::store_traits<rendezvous_test::own_scheme> {
  static constexpr std::string_view scheme = "own";
  static void resolve(rendezvous_request& request) {
    if (!request.rank) request.rank = std::stoi(request.query.at("place"));
  }
  static std::shared_ptr<store> open(const rendezvous_request& request) {
    return request.location == "here" ? rendezvous_test::own_store()->share() : nullptr;
  }
};

namespace rendezvous_test {
static_assert(ferry::rendezvous_store<own_scheme>);
static_assert(ferry::rendezvous_store<ferry::tcp_scheme>);
static_assert(!ferry::rendezvous_store<plain_scheme>);

#define CHECK_FAILS(failing, wanted_kind, part) \
  do {                                          \
    const failure problem = failing;            \
    CAPTURE(problem.text);                      \
    CHECK(problem.kind == (wanted_kind));       \
    CHECK(contains(problem.text, part));        \
  } while (false)

TEST_CASE("malformed init methods are errors that name the fault") {
  CHECK_FAILS(fails("10.0.0.1:29500", 0, 1), errc::bad_init_method, "env://, tcp://, file://");
  CHECK_FAILS(fails("://x", 0, 1), errc::bad_init_method, "scheme");
  CHECK_FAILS(fails("etcd://x", 0, 1), errc::bad_init_method,
              "unknown scheme 'etcd'; known are env://, tcp://, file://");
  CHECK_FAILS(fails("tcp://127.0.0.1", 0, 1), errc::bad_init_method, "port number missing");
  CHECK_FAILS(fails("tcp://127.0.0.1:", 0, 1), errc::bad_init_method, "port number missing");
  CHECK_FAILS(fails("tcp://:29500", 0, 1), errc::bad_init_method, "host missing");
  CHECK_FAILS(fails("tcp://h:65536", 0, 1), errc::bad_init_method, "65536");
  CHECK_FAILS(fails("tcp://h:65536", 0, 1), errc::bad_init_method, "16 bits");
  CHECK_FAILS(fails("tcp://h:-1", 0, 1), errc::bad_init_method, "16 bits");
  CHECK_FAILS(fails("tcp://h:29x", 0, 1), errc::bad_init_method, "'29x'");
  CHECK_FAILS(fails("tcp://h:99999999999999", 0, 1), errc::bad_init_method, "16 bits");
  CHECK_FAILS(fails("tcp://h:1/path", 0, 1), errc::bad_init_method, "'1/path'");
  CHECK_FAILS(fails("tcp://::1:29500", 0, 1), errc::bad_init_method, "brackets");
  CHECK_FAILS(fails("tcp://[::1:29500", 0, 1), errc::bad_init_method, "bracket");
  CHECK_FAILS(fails("tcp://[::1]29500", 0, 1), errc::bad_init_method, "bracket");
  CHECK_FAILS(fails("tcp://h:0", 0, 2), errc::bad_init_method, "port 0");
  CHECK_FAILS(fails("file://", 0, 1), errc::bad_init_method, "path missing");
  CHECK_FAILS(fails("file://relative/path", 0, 1), errc::bad_init_method, "not absolute");
  CHECK_FAILS(fails("env://host", 0, 1), errc::bad_init_method, "host");
}

TEST_CASE("missing and contradicting ranks and world sizes") {
  const temporary_directory directory;
  const std::string file = "file://" + directory.file("store");
  for (const std::string& method : {std::string("tcp://127.0.0.1:1"), file}) {
    CHECK_FAILS(fails(method), errc::bad_init_method, "rank parameter missing");
    CHECK_FAILS(fails(method, 0), errc::bad_init_method, "world size parameter missing");
    CHECK_FAILS(fails(method + "?world_size=2"), errc::bad_init_method, "rank parameter missing");
    CHECK_FAILS(fails(method + "?rank=0"), errc::bad_init_method, "world size parameter missing");
    CHECK_FAILS(fails(method + "?rank=0", 0, 1), errc::invalid_argument, "rank was given twice");
    CHECK_FAILS(fails(method + "?world_size=1", 0, 1), errc::invalid_argument, "world_size was given twice");
    CHECK_FAILS(fails(method + "?rank=first", std::nullopt, 1), errc::bad_init_method, "'first'");
    CHECK_FAILS(fails(method + "?rank=1.5", std::nullopt, 1), errc::bad_init_method, "'1.5'");
    CHECK_FAILS(fails(method + "?rank=0&rank=1", std::nullopt, 1), errc::bad_init_method, "twice");
    CHECK_FAILS(fails(method + "?rank", 0, 1), errc::bad_init_method, "name=value");
    CHECK_FAILS(fails(method + "?ranks=1", 0, 1), errc::bad_init_method, "'ranks'");
    CHECK_FAILS(fails(method, -1, 1), errc::invalid_argument, "rank -1");
    CHECK_FAILS(fails(method, 2, 2), errc::invalid_argument, "rank 2");
    CHECK_FAILS(fails(method, 32768, 40000), errc::invalid_argument, "32768");
    CHECK_FAILS(fails(method, 0, 0), errc::invalid_argument, "world size 0");
    CHECK_FAILS(fails(method + "?rank=3&world_size=3"), errc::invalid_argument, "rank 3");
  }
}

TEST_CASE("wrong environment variables are named") {
  const std::map<std::string, std::string> good = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", free_port()}};
  for (const auto& [name, value] : good) {
    auto without = good;
    without.erase(name);
    const launch_environment variables(without);
    CHECK_FAILS(fails("env://"), errc::missing_environment, name);
  }
  for (const auto& [name, bad] : std::vector<std::pair<std::string, std::string>>{{"RANK", "zero"},
                                                                                  {"RANK", "-1"},
                                                                                  {"WORLD_SIZE", "0"},
                                                                                  {"WORLD_SIZE", "2x"},
                                                                                  {"MASTER_PORT", "65536"},
                                                                                  {"MASTER_PORT", "http"},
                                                                                  {"MASTER_ADDR", ""}}) {
    auto with = good;
    with[name] = bad;
    const launch_environment variables(with);
    CHECK_FAILS(fails("env://"), errc::missing_environment, name);
    if (!bad.empty()) CHECK_FAILS(fails("env://"), errc::missing_environment, "'" + bad + "'");
  }
  auto beyond = good;
  beyond["RANK"] = "1";
  const launch_environment variables(beyond);
  CHECK_FAILS(fails("env://"), errc::missing_environment, "RANK='1'");
}

TEST_CASE("env:// takes from the environment what was not given") {
  const launch_environment variables(
      {{"RANK", "7"}, {"WORLD_SIZE", "9"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", free_port()}});
  const auto zero = rendezvous("env://?rank=0");
  CHECK(zero.rank == 0);
  CHECK(zero.world_size == 9);
  zero.store->set("k", "v");
  const auto seven = rendezvous("");
  CHECK(seven.rank == 7);
  CHECK(seven.store->get("k") == "v");
  CHECK(seven.store->local_address() == "127.0.0.1");
  const auto other = rendezvous("env://", 3, 4);
  CHECK(other.rank == 3);
  CHECK(other.world_size == 4);
  const auto joining = rendezvous({.dynamic = true});
  CHECK(joining.rank == 7);
  CHECK_FALSE(joining.world_size);
}

TEST_CASE("env:// reads the launchers' variables, and avoids the port of torchrun's store") {
  const std::string port = free_port(2);
  {
    const launch_environment variables(
        {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}});
    const auto met = rendezvous("env://");
    CHECK(met.rank == 0);
    CHECK(met.world_size == 3);
  }
  const launch_environment variables({{"RANK", "0"},
                                      {"WORLD_SIZE", "1"},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", port},
                                      {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  const auto met = rendezvous("env://");
  CHECK_FALSE(contains(met.store->describe(), ":" + port));
}

TEST_CASE("tcp:// is served by rank 0, whichever rank starts first") {
  const std::string port = free_port();
  for (const std::string& method : {"tcp://127.0.0.1:" + port, "tcp://[::1]:" + port + "/"}) {
    counting_observer observer;
    auto one = start_blocking(observer, [&] { return rendezvous(method, 1, 2).store->get("k", plenty); });
    const auto zero = rendezvous(method + "?rank=0&world_size=2");
    zero.store->set("k", "v");
    CHECK(one.get() == "v");
    CHECK(zero.rank == 0);
    CHECK(zero.world_size == 2);
  }
  const auto alone = rendezvous("tcp://127.0.0.1:0", 0, 1);
  alone.store->set("k", "v");
  CHECK(alone.store->get("k") == "v");
  const auto dynamic = rendezvous({.init_method = "tcp://127.0.0.1:" + port, .rank = 0, .dynamic = true});
  CHECK_FALSE(dynamic.world_size);
}

TEST_CASE("a taken port and an absent rank 0 are errors that name them") {
  const raw_socket taken = raw_socket::listen();
  const std::string at = "127.0.0.1:" + std::to_string(taken.port());
  CHECK_FAILS(fails("tcp://" + at, 0, 2), errc::address_in_use, at);
  CHECK_FAILS(fails("tcp://127.0.0.1:" + free_port(), 1, 2), errc::store_unreachable, "rank 0");
}

TEST_CASE("file:// uses a shared file") {
  const temporary_directory directory;
  const std::string method = "file://" + directory.file("store");
  const auto zero = rendezvous(method, 0, 2);
  const auto one = rendezvous(method + "?rank=1&world_size=2");
  zero.store->set("k", "v");
  CHECK(one.store->get("k") == "v");
  CHECK(one.rank == 1);
  CHECK_FAILS(fails("file://" + directory.file("no/such/directory"), 0, 1), errc::store_unreachable,
              "no/such/directory");
}

TEST_CASE("a custom scheme") {
  using stores = ferry::store_list<ferry::tcp_scheme, own_scheme>;
  const auto met = rendezvous(stores{}, {.init_method = "own://here?place=2&world_size=4"});
  CHECK(met.rank == 2);
  CHECK(met.world_size == 4);
  met.store->set("k", "v");
  CHECK(own_store()->get("k") == "v");
  std::string text;
  CHECK(kind_of([&] { return rendezvous(stores{}, {.init_method = "own://nowhere?place=0&world_size=4"}); }, &text) ==
        errc::store_failed);
  CHECK(contains(text, "own://nowhere"));
  CHECK(kind_of([&] { return rendezvous(stores{}, {.init_method = "file:///x"}); }, &text) == errc::bad_init_method);
  CHECK(contains(text, "known are tcp://, own://"));
}

}  // namespace rendezvous_test
