// How a static group forms, and the ways in which it fails to.

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ferry/store/hash_store.hpp>
#include <ferry/store/store_traits.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "forwarding_store.hpp"
#include "ports.hpp"
#include "processes.hpp"
#include "watchdog.hpp"

namespace static_group_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::child_process;
using ferry_test::cluster;
using ferry_test::cluster_options;
using ferry_test::run_together;
using ferry_test::start_workers;
using ferry_test::started;
using ferry_test::temporary_directory;
using ferry_test::worker_name;

int plus_one(int value) { return value + 1; }

// Has lost its connection whenever it waits, and the server takes longer to accept another one than the request may take.
class slow_to_reconnect final : public ferry_test::forwarding_store {
 public:
  using forwarding_store::forwarding_store;
  static inline std::atomic<int> gave_up{0};

 protected:
  std::vector<std::string> do_get(std::span<const std::string> keys, bool values, ferry::deadline until) override {
    try {
      return forwarding_store::do_get(keys, values, until);
    } catch (const ferry::error& e) {
      if (e.kind() != errc::store_timeout) throw;
      gave_up.fetch_add(1);
      gave_up.notify_all();
      ferry::throw_error(errc::store_unreachable, "connected, but there was no answer");
    }
  }
};

struct slow_scheme {};

// Takes no sums of a shutdown but the first one, and before that runs what is to happen between the first two rounds.
class without_sums final : public ferry_test::forwarding_store {
 public:
  using forwarding_store::forwarding_store;
  static inline std::function<void()> between_rounds;

 protected:
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             ferry::deadline until) override {
    if (key.ends_with("/sum")) {
      if (!key.ends_with("round/0/sum")) ferry::throw_error(errc::store_timeout, "no sums are taken");
      if (between_rounds) between_rounds();
    }
    return forwarding_store::do_compare_set(key, expected, desired, until);
  }
};
struct without_sums_scheme {};

}  // namespace static_group_test

template <>
struct ferry::store_traits<static_group_test::without_sums_scheme> {
  static constexpr std::string_view scheme = "without-sums";
  static std::shared_ptr<store> open(const rendezvous_request&) {
    static const auto only = std::make_shared<hash_store>();
    return std::make_shared<static_group_test::without_sums>(only->share());
  }
};

template <>
struct ferry::store_traits<static_group_test::slow_scheme> {
  static constexpr std::string_view scheme = "slow";
  static std::shared_ptr<store> open(const rendezvous_request&) {
    static const auto only = std::make_shared<hash_store>();
    return std::make_shared<static_group_test::slow_to_reconnect>(only->share());
  }
};

namespace static_group_test {
namespace {

using static_group_test::plus_one;

ferry::worker_config member(const std::string& init_method, int rank, int world_size) {
  return {.name = worker_name(rank), .rank = rank, .world_size = world_size, .init_method = init_method};
}

void expect_failure(const started& result, errc kind, std::string_view text) {
  expect_error(kind, text, [&] {
    if (result.error) std::rethrow_exception(result.error);
  });
}

// The socket of another program, on a port of its own.
class foreign_listener {
 public:
  foreign_listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (socket_ < 0 || ::bind(socket_, generic, size) != 0 || ::listen(socket_, 8) != 0 ||
        ::getsockname(socket_, generic, &size) != 0) {
      throw std::system_error(errno, std::generic_category(), "a listening socket");
    }
    port_ = ntohs(address.sin_port);
  }
  ~foreign_listener() { ::close(socket_); }
  foreign_listener(const foreign_listener&) = delete;
  foreign_listener& operator=(const foreign_listener&) = delete;
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

 private:
  int socket_;
  std::uint16_t port_ = 0;
};

// Starts a worker from its arguments (init method, and optionally name, rank, world size) and the environment; prints
// its identity, or the error.
const ferry_test::role start_from_environment("start", [](const std::vector<std::string>& arguments) {
  ferry::worker_config config;
  config.init_timeout = 60s;
  if (!arguments.empty()) config.init_method = arguments[0];
  try {
    ferry::worker self = ferry::init_rpc(config);
    ferry_test::tell_parent("started " + to_string(self.info()) + " of " + std::to_string(self.workers().size()));
    self.shutdown();
    return 0;
  } catch (const ferry::error& e) {
    ferry_test::tell_parent(std::string(e.what()));
    return 3;
  }
});

// Arguments: init method, rank, world size. A worker that runs until it is killed.
const ferry_test::role start_and_stay("stay", [](const std::vector<std::string>& arguments) {
  const ferry::worker self =
      ferry::init_rpc(member(arguments.at(0), std::stoi(arguments.at(1)), std::stoi(arguments.at(2))));
  ferry_test::tell_parent("started");
  for (;;) ::pause();
  return 0;
});

const std::map<std::string, std::string> no_environment{
    {"RANK", ""}, {"WORLD_SIZE", ""}, {"MASTER_ADDR", ""}, {"MASTER_PORT", ""}, {"LOCAL_RANK", ""}};

std::string start_with(std::map<std::string, std::string> environment, const std::string& init_method = "env://") {
  environment.insert(no_environment.begin(), no_environment.end());
  child_process child({.role = "start", .arguments = {init_method}, .environment = environment});
  const std::string line = child.read_line();
  CHECK(child.wait() == (line.starts_with("started") ? 0 : 3));
  return line;
}

void check_contains(const std::string& text, std::string_view part) {
  CHECK_MESSAGE(text.find(part) != std::string::npos, "'", std::string(part), "' is not in '", text, "'");
}

}  // namespace

TEST_CASE("groups of several sizes form over a file and over tcp") {
  for (const auto through : {cluster_options::meeting::file, cluster_options::meeting::tcp}) {
    for (const int size : {1, 2, 5}) {
      CAPTURE(size);
      cluster group(size, {.through = through});
      for (int rank = 0; rank != size; ++rank) {
        CHECK(group[rank].workers().size() == static_cast<std::size_t>(size));
        CHECK(group[rank].rpc_sync<plus_one>(size - 1, rank) == rank + 1);
      }
    }
  }
}

TEST_CASE("[row 5] when all workers have the same name, each of them fails with that error") {
  temporary_directory directory;
  std::vector<ferry::worker_config> configs;
  for (int rank = 0; rank != 4; ++rank) {
    configs.push_back(member("file://" + directory.file("store"), rank, 4));
    configs.back().name = "same";
  }
  for (const started& each : start_workers(configs)) expect_failure(each, errc::duplicate_name, "'same' is not unique");
}

TEST_CASE("[row 6] when two of several workers share a name, each of them fails with that error") {
  temporary_directory directory;
  std::vector<ferry::worker_config> configs;
  for (int rank = 0; rank != 4; ++rank) configs.push_back(member("file://" + directory.file("store"), rank, 4));
  configs[3].name = "worker1";
  for (const started& each : start_workers(configs)) {
    expect_failure(each, errc::duplicate_name, "'worker1' is not unique");
    expect_failure(each, errc::duplicate_name, "the workers 1 and 3");
  }
}

TEST_CASE("[row 8] a process initialises, shuts down and initialises again") {
  for (int incarnation = 0; incarnation != 3; ++incarnation) {
    cluster group(2);
    CHECK(group[0].rpc_sync<plus_one>("worker1", incarnation) == incarnation + 1);
    group.shutdown();
    CHECK_FALSE(ferry::is_initialized());
  }
  SUBCASE("also over the same file, which the last worker to leave has emptied") {
    temporary_directory directory;
    const std::string file = "file://" + directory.file("store");
    for (int incarnation = 0; incarnation != 2; ++incarnation) {
      auto workers = start_workers({member(file, 0, 2), member(file, 1, 2)});
      REQUIRE(!workers[0].error);
      REQUIRE(!workers[1].error);
      CHECK(workers[1].worker.rpc_sync<plus_one>("worker0", incarnation) == incarnation + 1);
      ferry_test::run_together({[&] { workers[0].worker.shutdown(); }, [&] { workers[1].worker.shutdown(); }});
    }
  }
}

TEST_CASE("several groups run side by side in one process") {
  cluster first(2);
  cluster second(2);
  CHECK(first[0].rpc_sync<plus_one>("worker1", 1) == 2);
  CHECK(second[0].rpc_sync<plus_one>("worker1", 2) == 3);
  first.shutdown();
  CHECK(second[1].rpc_sync<plus_one>("worker0", 3) == 4);
}

TEST_CASE("a worker without a name is named after its rank") {
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.name.clear(); }});
  CHECK(group[1].name() == "worker1");
}

TEST_CASE("an init method with an unknown scheme is an error that names it") {
  const auto start = [](const std::string& init_method) { (void)ferry::init_rpc(member(init_method, 0, 1)); };
  expect_error(errc::bad_init_method, "pigeon", [&] { start("pigeon://coop"); });
  expect_error(errc::bad_init_method, "no scheme here", [&] { start("no scheme here"); });
  expect_error(errc::bad_init_method, "port", [&] { start("tcp://127.0.0.1"); });
  expect_error(errc::bad_init_method, "99999", [&] { start("tcp://127.0.0.1:99999"); });
  expect_error(errc::bad_init_method, "path", [&] { start("file://"); });
}

TEST_CASE("rank and world size are required, must fit, and may be given once") {
  temporary_directory directory;
  const std::string file = "file://" + directory.file("store");
  const auto start = [](const std::string& method, int rank, int size) {
    (void)ferry::init_rpc({.rank = rank, .world_size = size, .init_method = method});
  };
  const auto kind_of = [&](auto... arguments) {
    try {
      start(arguments...);
    } catch (const ferry::error& e) {
      const std::string text = e.what();
      CHECK_MESSAGE((text.find("rank") != std::string::npos || text.find("world") != std::string::npos), text);
      return e.kind();
    }
    return errc{};
  };
  // Either the argument or the init method may be blamed.
  const auto refused = [&](auto... arguments) {
    const errc kind = kind_of(arguments...);
    return kind == errc::invalid_argument || kind == errc::bad_init_method;
  };
  CHECK(refused(file, -1, 2));
  CHECK(refused(file, 2, 2));
  CHECK(refused(file, 5, 2));
  CHECK(refused(file, -7, 2));
  CHECK(refused(file, 0, -2));
  CHECK(refused(file + "?rank=0", 0, 2));
  CHECK(refused(file + "?rank=0&world_size=1", -1, 1));
  CHECK(refused(file + "?rank=zero&world_size=1", -1, 0));
  ferry::worker self = ferry::init_rpc({.name = "q", .init_method = file + "?rank=0&world_size=1"});
  CHECK(self.info() == ferry::worker_info("q", 0));
}

TEST_CASE("workers that disagree about the size of the group do not form one") {
  temporary_directory directory;
  const std::string file = "file://" + directory.file("store");
  auto two = member(file, 0, 2);
  auto three = member(file, 1, 3);
  two.init_timeout = three.init_timeout = 6s;
  const auto results = start_workers({two, three});
  // The second worker finds the disagreement; the first one misses a member.
  int found = 0;
  for (const started& each : results) {
    REQUIRE(each.error);
    try {
      std::rethrow_exception(each.error);
    } catch (const ferry::error& e) {
      if (e.kind() != errc::group_mismatch) continue;
      ++found;
      check_contains(e.what(), "static 2");
      check_contains(e.what(), "static 3");
      check_contains(e.what(), "world_size");
    }
  }
  CHECK(found == 1);
}

TEST_CASE("a rank that is given twice is an error at the second, naming both") {
  temporary_directory directory;
  const std::string file = "file://" + directory.file("store");
  auto first = member(file, 0, 2);
  auto second = member(file, 0, 2);
  second.name = "other";
  first.init_timeout = second.init_timeout = 6s;
  const auto results = start_workers({first, second});
  int found = 0;
  for (const started& each : results) {
    REQUIRE(each.error);
    try {
      std::rethrow_exception(each.error);
    } catch (const ferry::error& e) {
      if (e.kind() != errc::duplicate_id) continue;
      ++found;
      check_contains(e.what(), "'worker0'");
      check_contains(e.what(), "'other'");
      check_contains(e.what(), "id 0 is not unique");
    }
  }
  CHECK(found == 1);
}

TEST_CASE("a worker that is initialised twice learns that this process runs it") {
  temporary_directory directory;
  const std::string file = "file://" + directory.file("store");
  {
    ferry::worker first = ferry::init_rpc(member(file, 0, 1));
    for (int attempt = 0; attempt != 3; ++attempt) {
      expect_error(errc::already_initialized, "'worker0' is already initialized: this process runs it",
                   [&] { (void)ferry::init_rpc(member(file, 0, 1)); });
    }
    CHECK(first.workers().size() == 1);  // it goes on
    first.shutdown();
  }
  ferry::worker again = ferry::init_rpc(member(file, 0, 1));
  again.shutdown();
}

TEST_CASE("after a start that failed the same workers may start again in the same file") {
  temporary_directory directory;
  const std::string file = "file://" + directory.file("store");
  const auto form = [&] {
    auto workers = start_workers({member(file, 0, 2), member(file, 1, 2)});
    for (const started& each : workers) {
      if (each.error) std::rethrow_exception(each.error);
    }
    CHECK(workers[0].worker.rpc_sync<plus_one>("worker1", 1) == 2);
    ferry_test::run_together({[&] { workers[0].worker.shutdown(); }, [&] { workers[1].worker.shutdown(); }});
  };
  auto wrong = member(file, 1, 2);
  for (int round = 0; round != 3; ++round) {
    CAPTURE(round);
    SUBCASE("because one of them was refused") {
      wrong.transport.bind = "0.0.0.0";
      const auto results = start_workers({member(file, 0, 2), wrong});
      expect_failure(results[0], errc::init_failed, "worker1");
      expect_failure(results[1], errc::authentication_required, "0.0.0.0");
      form();
    }
    SUBCASE("because they were configured for different groups") {
      wrong = member(file, 1, 3);
      wrong.init_timeout = 300ms;
      auto right = member(file, 0, 2);
      right.init_timeout = 300ms;
      for (const started& each : start_workers({right, wrong})) CHECK(each.error);
      form();
    }
  }
}

TEST_CASE("after the workers of a group were killed, the first start reports what to do, and the next one works") {
  temporary_directory directory;
  const std::string file = "file://" + directory.file("store");
  {
    std::vector<std::unique_ptr<child_process>> children;
    for (const char* rank : {"0", "1"}) {
      children.push_back(
          std::make_unique<child_process>(ferry_test::child_options{.role = "stay", .arguments = {file, rank, "2"}}));
    }
    for (const auto& each : children) REQUIRE(each->read_line() == "started");
    for (const auto& each : children) {
      each->kill(SIGKILL);
      CHECK(each->wait() == 128 + SIGKILL);
    }
  }
  int reported = 0;
  for (const started& each : start_workers({member(file, 0, 2), member(file, 1, 2)})) {
    REQUIRE(each.error);
    try {
      std::rethrow_exception(each.error);
    } catch (const ferry::error& e) {
      if (std::string_view(e.what()).find("start all workers again") != std::string_view::npos) ++reported;
    }
  }
  CHECK(reported >= 1);
  auto workers = start_workers({member(file, 0, 2), member(file, 1, 2)});
  REQUIRE(!workers[0].error);
  REQUIRE(!workers[1].error);
  CHECK(workers[0].worker.rpc_sync<plus_one>("worker1", 1) == 2);
  ferry_test::run_together({[&] { workers[0].worker.shutdown(); }, [&] { workers[1].worker.shutdown(); }});
}

TEST_CASE("a group with members missing is an error after the init timeout that names them") {
  temporary_directory directory;
  auto config = member("file://" + directory.file("store"), 1, 4);
  config.init_timeout = 150ms;
  const auto before = ferry::clock::now();
  const auto results = start_workers({config});
  CHECK(ferry::clock::now() - before >= 150ms);
  expect_failure(results[0], errc::store_timeout, "missing: rank 0, rank 2, rank 3");
  expect_failure(results[0], errc::store_timeout, "worker_info(id=1, name=worker1)");
  SUBCASE("and unless said otherwise the init timeout is that of calls") {
    auto other = member("file://" + directory.file("other"), 0, 2);
    other.rpc_timeout = 100ms;
    expect_failure(start_workers({other})[0], errc::store_timeout, "missing: rank 1");
  }
}

TEST_CASE("a taken port is an error that names it") {
  foreign_listener taken;
  SUBCASE("of the store") {
    auto config = member("tcp://127.0.0.1:" + std::to_string(taken.port()), 0, 2);
    config.init_timeout = 500ms;
    expect_failure(start_workers({config})[0], errc::address_in_use, std::to_string(taken.port()));
  }
  SUBCASE("of the worker's own listening socket") {
    temporary_directory directory;
    auto config = member("file://" + directory.file("store"), 0, 1);
    config.transports = {"tcp"};
    config.transport.bind = "127.0.0.1";
    config.transport.port = taken.port();
    expect_failure(start_workers({config})[0], errc::address_in_use, std::to_string(taken.port()));
    SUBCASE("unless the next one of a range is free") {
      config.init_method = "file://" + directory.file("other store");
      config.transport.port_last = static_cast<std::uint16_t>(std::min(65535, taken.port() + 20));
      const auto results = start_workers({config});
      CHECK(!results[0].error);
    }
  }
}

TEST_CASE("a store without a server is an error that names its address") {
  const std::string port = std::to_string(ferry_test::free_port());
  auto config = member("tcp://127.0.0.1:" + port, 1, 2);
  config.init_timeout = 200ms;
  expect_failure(start_workers({config})[0], errc::store_unreachable, "127.0.0.1:" + port);
}

TEST_CASE("another service in place of a store is an error") {
  foreign_listener silent;
  auto config = member("tcp://127.0.0.1:" + std::to_string(silent.port()), 1, 2);
  config.init_timeout = 200ms;
  const auto results = start_workers({config});
  REQUIRE(results[0].error);
  try {
    std::rethrow_exception(results[0].error);
  } catch (const ferry::error& e) {
    check_contains(e.what(), std::to_string(silent.port()));
  }
}

TEST_CASE("workers that wait for others stay patient with a store that takes long to connect again") {
  const ferry_test::watchdog limit("a store that is slow to connect");
  const auto config = [](int rank) {
    ferry::worker_config result = member("slow://", rank, 2);
    result.stores = ferry::store_list<slow_scheme>{};
    return result;
  };
  const auto await_another = [] {
    const int before = slow_to_reconnect::gave_up.load();
    slow_to_reconnect::gave_up.wait(before);
  };
  int after_start = 0;
  std::jthread other([&] {
    ferry::worker self = ferry::init_rpc(config(1));  // waits for the first one
    after_start = slow_to_reconnect::gave_up.load();
    self.shutdown();  // waits for it again
  });
  await_another();
  ferry::worker self = ferry::init_rpc(config(0));
  CHECK(self.rpc_sync<plus_one>("worker1", 1) == 2);
  await_another();
  self.shutdown();
  other.join();
  CHECK(after_start > 0);
  CHECK(slow_to_reconnect::gave_up.load() > after_start);
}

TEST_CASE("a shutdown that does not end in time because calls go on says whose") {
  std::vector<ferry::worker_config> configs;
  for (const int rank : {0, 1, 2}) {
    configs.push_back(member("without-sums://", rank, 3));
    configs.back().stores = ferry::store_list<without_sums_scheme>{};
  }
  auto group = start_workers(configs);
  for (started& each : group) REQUIRE_FALSE(each.error);
  std::once_flag once;
  without_sums::between_rounds = [&] {
    std::call_once(once, [&] { CHECK(group[2].worker.rpc_sync<plus_one>("worker1", 1) == 2); });
  };
  std::vector<std::function<void()>> shutdowns;
  for (started& each : group) {
    shutdowns.emplace_back([&each] {
      try {
        each.worker.shutdown(true, 3s);
        FAIL_CHECK("it has ended in time");
      } catch (const ferry::error& e) {
        const std::string text = e.what();
        CAPTURE(text);
        CHECK(e.kind() == errc::shutdown_timeout);
        CHECK(text.find("all have come, but these made or served calls: worker_info(id=1, name=worker1), "
                        "worker_info(id=2, name=worker2)") != std::string::npos);
      }
    });
  }
  run_together(shutdowns);
  without_sums::between_rounds = nullptr;
}

TEST_CASE("a failed start leaves nothing behind: the next one works") {
  temporary_directory directory;
  auto config = member("file://" + directory.file("store"), 0, 2);
  config.init_timeout = 50ms;
  for (int i = 0; i != 3; ++i) expect_failure(start_workers({config})[0], errc::store_timeout, "missing: rank 1");
  CHECK_FALSE(ferry::is_initialized());
  cluster group(2);
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
}

TEST_CASE("everything can come from the environment") {
  const std::string port = std::to_string(ferry_test::free_port());
  std::vector<child_process> children;
  for (const char* rank : {"0", "1", "2"}) {
    children.emplace_back(ferry_test::child_options{
        .role = "start",
        .environment = {{"RANK", rank}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}}});
  }
  for (std::size_t rank = 0; rank != children.size(); ++rank) {
    const std::string id = std::to_string(rank);
    CHECK(children[rank].read_line() == "started worker_info(id=" + id + ", name=worker" + id + ") of 3");
    CHECK(children[rank].wait() == 0);
  }
}

TEST_CASE("an environment variable that is missing or invalid is an error that names it") {
  const std::map<std::string, std::string> good{
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29999"}};
  for (const auto& [name, value] : good) {
    auto environment = good;
    environment[name] = "";
    const std::string line = start_with(environment);
    check_contains(line, "missing_environment");
    check_contains(line, name);
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_PORT"}) {
    auto environment = good;
    environment[name] = "many";
    const std::string line = start_with(environment);
    check_contains(line, name);
    check_contains(line, "many");
  }
  auto environment = good;
  environment["MASTER_PORT"] = "70000";
  check_contains(start_with(environment), "MASTER_PORT");
}

}  // namespace static_group_test
