// Admission to a group: secrets from options and the environment, and workers that other users must not reach.

#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ferry/ferry.hpp>
#include <ferry/store/rendezvous.hpp>
#include <ferry/store/tcp_store.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "launch_environment.hpp"
#include "ports.hpp"
#include "process_group.hpp"
#include "processes.hpp"

namespace admission_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::child_process;
using ferry_test::launch_environment;
using ferry_test::variables;

int doubled(int value) { return 2 * value; }

namespace {

using admission_test::doubled;

const std::string right = "the secret of the group";
const std::string wrong = "of no group, 4711";

// Starts a group like any program of its launcher does; tells what came of it.
const ferry_test::role launched("launched with a secret", [](const std::vector<std::string>& arguments) {
  try {
    ferry::worker_config config{.rpc_timeout = 20s};
    if (!arguments.at(0).empty()) config.transports = {arguments.at(0)};
    ferry::worker self = ferry::init_rpc(config);
    const int size = static_cast<int>(self.workers().size());
    ferry_test::tell_parent(std::to_string(self.rpc_sync<doubled>((self.id().value + 1) % size, self.id().value)));
    self.shutdown();
  } catch (const ferry::error& e) {
    ferry_test::tell_parent(e.what());
  }
  return 0;
});

// The thread that shakes hands ends with this, after libraries have done what they do at the end of a process.
struct transport_of_the_process {
  std::shared_ptr<ferry::reactor> loop;
  std::shared_ptr<ferry::transport> kept;
};
transport_of_the_process& at_the_end() {
  static transport_of_the_process held;
  return held;
}
const ferry_test::role keeps_a_transport("keeps a transport to the end", [](const std::vector<std::string>& arguments) {
  at_the_end().loop = ferry::shared_reactor();
  at_the_end().kept = ferry::transport_traits<ferry::tcp>::open(*at_the_end().loop);
  std::vector<ferry::worker_config> configs;
  for (int rank = 0; rank != 2; ++rank) {
    configs.push_back(
        {.rank = rank, .world_size = 2, .init_method = arguments.at(0), .transports = {"tcp"}, .secret = right});
  }
  auto workers = ferry_test::start_workers(configs);
  const bool well = workers[0].worker.rpc_sync<doubled>("worker1", 4) == 8;
  ferry_test::run_together({[&] { workers[0].worker.shutdown(); }, [&] { workers[1].worker.shutdown(); }});
  return well ? 0 : 1;
});

// A thread that has used a store, and ends with this, too.
struct client_of_the_process {
  std::promise<void> end;
  std::thread thread;
  client_of_the_process() = default;
  client_of_the_process(const client_of_the_process&) = delete;
  client_of_the_process& operator=(const client_of_the_process&) = delete;
  ~client_of_the_process() {
    end.set_value();
    thread.join();
  }
};
const ferry_test::role keeps_a_client("keeps a client of a store to the end", [](const std::vector<std::string>&) {
  static client_of_the_process held;
  const auto server = ferry::tcp_store_server::listen("127.0.0.1", 0, {}, {.secret = right});
  std::promise<std::string> read;
  held.thread = std::thread([&read, port = server->port()] {
    {
      ferry::tcp_store client({.host = "127.0.0.1", .port = port, .secret = right});
      client.set("key", "value");
      read.set_value(client.get("key"));
    }
    held.end.get_future().wait();
  });
  return read.get_future().get() == "value" ? 0 : 1;
});

std::vector<std::string> run_job(const std::string& transport, const std::vector<variables>& secrets) {
  const std::string port = std::to_string(ferry_test::free_port());
  std::vector<child_process> workers;
  for (std::size_t rank = 0; rank != secrets.size(); ++rank) {
    variables environment{{"RANK", std::to_string(rank)},
                          {"WORLD_SIZE", std::to_string(secrets.size())},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", port}};
    environment.insert(secrets[rank].begin(), secrets[rank].end());
    workers.emplace_back(ferry_test::child_options{
        .role = "launched with a secret", .arguments = {transport}, .environment = ferry_test::only(environment)});
  }
  std::vector<std::string> results;
  for (auto& each : workers) results.push_back(each.read_line());
  for (auto& each : workers) CHECK(each.wait() == 0);
  return results;
}

ferry::worker_config alone(const std::string& init_method) {
  return {.name = "alone", .rank = 0, .world_size = 1, .init_method = init_method, .init_timeout = 20s};
}

}  // namespace

TEST_CASE("threads that have proved a secret leave nothing behind, also if they end after the program") {
  if (!ferry::authentication_available()) return;
  child_process child({.role = "keeps a transport to the end",
                       .arguments = {"tcp://127.0.0.1:" + std::to_string(ferry_test::free_port())}});
  CHECK(child.wait() == 0);  // the leak checker has its say
  child_process client({.role = "keeps a client of a store to the end"});
  CHECK(client.wait() == 0);
}

TEST_CASE("a world of processes with FERRY_SECRET works as any other, over every transport") {
  if (!ferry::authentication_available()) return;
  for (const char* transport : {"", "tcp", "unix", "shm"}) {
    CAPTURE(transport);
    const variables secret{{"FERRY_SECRET", right}};
    CHECK((run_job(transport, {secret, secret, secret}) == std::vector<std::string>{"0", "2", "4"}));
  }
}

TEST_CASE("a process with another secret, or none, is not let in") {
  if (!ferry::authentication_available()) return;
  for (const auto& other : {variables{{"FERRY_SECRET", wrong}}, variables{}}) {
    const std::string port = std::to_string(ferry_test::free_port());
    const ferry::rendezvous_result host =
        ferry::rendezvous({.init_method = "tcp://127.0.0.1:" + port, .rank = 0, .world_size = 2, .secret = right});
    variables environment{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
    environment.insert(other.begin(), other.end());
    child_process stranger(
        {.role = "launched with a secret", .arguments = {""}, .environment = ferry_test::only(environment)});
    const std::string said = stranger.read_line();
    CHECK_MESSAGE(said.starts_with("authentication_failed: "), said);
    for (const auto& secret : {right, wrong}) CHECK(said.find(secret) == std::string::npos);
    CHECK(stranger.wait() == 0);
  }
}

TEST_CASE("the secret may be in a file that only its user can read") {
  if (!ferry::authentication_available()) return;
  const ferry_test::temporary_directory directory;
  const std::string path = directory.file("secret");
  const auto write = [&](const std::string& text, int mode) {
    std::ofstream(path) << text;
    REQUIRE(::chmod(path.c_str(), static_cast<mode_t>(mode)) == 0);
  };
  const launch_environment named(variables{{"FERRY_SECRET_FILE", path}});
  expect_error(errc::missing_environment, "No such file", [] { (void)ferry::secret_from_environment(); });
  for (const char* text : {"a secret\n", "a secret\r\n", "a secret"}) {
    write(text, 0600);
    CHECK(ferry::secret_from_environment() == "a secret");
  }
  ::unlink(path.c_str());
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  expect_error(errc::missing_environment, "it is empty", [] { (void)ferry::secret_from_environment(); });
  {
    const int silent = ::open(path.c_str(), O_RDWR | O_CLOEXEC);  // a writer that writes nothing
    expect_error(errc::missing_environment, "it is a pipe", [] { (void)ferry::secret_from_environment(); });
    ::close(silent);
  }
  ::unlink(path.c_str());
  write("two\nlines\n\n", 0640);
  CHECK(ferry::secret_from_environment() == "two\nlines\n");
  write(std::string(4096, 's') + "\n", 0600);
  CHECK(ferry::secret_from_environment() == std::string(4096, 's'));
  for (const int mode : {0644, 0660, 0602}) {
    write("a secret", mode);
    expect_error(errc::missing_environment, "chmod 600 " + path, [] { (void)ferry::secret_from_environment(); });
  }
  write("\n", 0600);
  expect_error(errc::missing_environment, "it is empty", [] { (void)ferry::secret_from_environment(); });
  write(std::string(5000, 's'), 0600);
  expect_error(errc::missing_environment, "more than 4096 bytes", [] { (void)ferry::secret_from_environment(); });
  ::setenv("FERRY_SECRET", "this one", 1);
  CHECK(ferry::secret_from_environment() == "this one");
}

TEST_CASE("workers whose secrets differ cannot call each other, and are not dead to each other") {
  if (!ferry::authentication_available()) return;
  for (const char* transport : {"inproc", "shm", "unix", "tcp"}) {
    CAPTURE(transport);
    captured_log log;
    const ferry_test::cluster_options options{.configure =
                                                  [&](ferry::worker_config& config) {
                                                    config.transports = {transport};
                                                    config.secret = config.rank == 0 ? right : wrong;
                                                  },
                                              .graceful = false};
    ferry_test::cluster group(2, options);
    expect_error(errc::authentication_failed, "worker1", [&] { (void)group[0].rpc_sync<doubled>("worker1", 1); });
    expect_error(errc::authentication_failed, "worker0", [&] { (void)group[1].rpc_sync<doubled>("worker0", 1); });
    CHECK(group[0].rpc_sync<doubled>("worker0", 1) == 2);
    CHECK(group[0].debug_info("agent.lost_workers") == "0");
    CHECK_FALSE(log.has(right));
    CHECK_FALSE(log.has(wrong));
  }
}

TEST_CASE("a worker that other machines can reach does not start by accident") {
  const ferry_test::temporary_directory directory;
  const launch_environment none({});
  captured_log log;
  // Each start follows one that was refused.
  const auto in_file = [&] { return "file://" + directory.file("store"); };
  const auto reachable = [&] {
    auto config = alone(in_file());
    config.transport.bind = "0.0.0.0";
    return config;
  };
  const auto starts = [&](const ferry::worker_config& config) {
    ferry::worker self = ferry::init_rpc(config);
    CHECK(self.rpc_sync<doubled>("alone", 1) == 2);
    self.shutdown();
  };
  for (const char* way : {"worker_config::secret", "FERRY_SECRET_FILE", "worker_config::serve",
                          "FERRY_ALLOW_UNAUTHENTICATED=1", "0.0.0.0"})
    expect_error(errc::authentication_required, way, [&] { starts(reachable()); });
  // The same for the store that rank 0 serves.
  const std::string open_store = "tcp://0.0.0.0:" + std::to_string(ferry_test::free_port());
  expect_error(errc::authentication_required, "FERRY_SECRET", [&] { starts(alone(open_store)); });

  for (const bool served : {false, true}) {
    const auto start_with = [&](const std::function<void(ferry::worker_config&)>& change) {
      auto config = reachable();
      if (served) config.init_method = open_store;
      change(config);
      starts(config);
    };
    start_with([](auto& config) { config.allow_unauthenticated = true; });
    start_with([](auto& config) { config.serve = ferry::serve_list<doubled>; });
    if (ferry::authentication_available()) {
      start_with([](auto& config) { config.secret = right; });
    } else {
      expect_error(errc::invalid_argument, "built without authentication",
                   [&] { start_with([](auto& config) { config.secret = right; }); });
    }
    {
      const launch_environment allowed(variables{{"FERRY_ALLOW_UNAUTHENTICATED", "1"}});
      start_with([](auto&) {});
    }
    const launch_environment odd(variables{{"FERRY_ALLOW_UNAUTHENTICATED", "maybe"}});
    expect_error(errc::missing_environment, "'maybe'", [&] { start_with([](auto&) {}); });
  }
}

}  // namespace admission_test
