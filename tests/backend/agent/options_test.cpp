#include <ferry/backend/options.hpp>

#include <chrono>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace options_test {

using namespace std::chrono_literals;

TEST_CASE("options have the documented defaults") {
  const ferry::rpc_options options;
  CHECK(options.rpc_timeout == ferry::timeout(60s));
  CHECK(options.init_method == "env://");
  CHECK(options.num_worker_threads == 16);
  CHECK_NOTHROW(options.check());
}

TEST_CASE("options outside their range are refused by name") {
  ferry::rpc_options options;
  options.num_worker_threads = 0;
  expect_error(ferry::errc::invalid_argument, "num_worker_threads must be positive", [&] { options.check(); });
  options = {};
  options.max_blocked_handlers = -1;
  expect_error(ferry::errc::invalid_argument, "max_blocked_handlers", [&] { options.check(); });
  options = {};
  options.rpc_timeout = {};
  expect_error(ferry::errc::invalid_argument, "rpc_timeout", [&] { options.check(); });
  options = {};
  options.transport.port = 5000;
  options.transport.port_last = 4000;
  expect_error(ferry::errc::invalid_argument, "5000..4000", [&] { options.check(); });
  expect_error(ferry::errc::invalid_argument, "negative", [] { ferry::rpc_options{}.rpc_timeout = -1s; });
}

TEST_CASE("each flow limit is at least one, and is set in one place") {
  for (const auto bound : {&ferry::flow_limits::calls_per_peer, &ferry::flow_limits::queued_bytes_per_worker,
                           &ferry::flow_limits::served_calls_per_peer}) {
    ferry::worker_config config;
    config.flow.*bound = 0;
    expect_error(ferry::errc::invalid_argument, "at least 1", [&] { (void)config.options(); });
  }
  ferry::worker_config config;
  ferry::rpc_options options;
  options.flow.calls_per_peer = 7;
  ferry::detail::reconcile(config, options);
  CHECK(config.flow.calls_per_peer == 7);
  config.flow.calls_per_peer = 8;
  expect_error(ferry::errc::invalid_argument, "flow", [&] { ferry::detail::reconcile(config, options); });
}

TEST_CASE("an invalid option is an error before the worker contacts the store") {
  ferry_test::temporary_directory directory;
  ferry::worker_config config{.name = "a", .rank = 0, .world_size = 2, .init_method = "file://" + directory.file("s")};
  config.num_worker_threads = 0;
  expect_error(ferry::errc::invalid_argument, "num_worker_threads", [&] { (void)ferry::init_rpc(config); });
  config.num_worker_threads = 1;
  config.transports = {"carrier-pigeon"};
  expect_error(ferry::errc::invalid_argument, "carrier-pigeon", [&] { (void)ferry::init_rpc(config); });
  expect_error(ferry::errc::invalid_argument, "tcp", [&] { (void)ferry::init_rpc(config); });
  for (const std::string_view part : {"options.transports", "'tcp' twice"}) {
    config.transports = {"tcp", "inproc", "tcp"};
    expect_error(ferry::errc::invalid_argument, part, [&] { (void)ferry::init_rpc(config); });
  }
}

TEST_CASE("options reach the worker: its default timeout is reported and can be changed") {
  ferry_test::cluster_options options;
  options.configure = [](ferry::worker_config& config) {
    config.rpc_timeout = config.rank == 0 ? ferry::timeout(500ms) : ferry::timeout(100s);
    config.init_timeout = 60s;
  };
  ferry_test::cluster group(2, options);
  CHECK(group[0].rpc_timeout() == ferry::timeout(500ms));
  CHECK(group[1].rpc_timeout() == ferry::timeout(100s));
  group[0].set_rpc_timeout(2s);
  CHECK(group[0].rpc_timeout() == ferry::timeout(2s));
  group[0].set_rpc_timeout(ferry::no_timeout);
  CHECK(group[0].rpc_timeout().is_never());
  group[0].set_rpc_timeout(0s);
  CHECK(group[0].rpc_timeout().is_never());
  expect_error(ferry::errc::invalid_argument, "set_rpc_timeout", [&] { group[0].set_rpc_timeout({}); });
}

TEST_CASE("[row 18] the number of worker threads is in the worker's debug information") {
  ferry_test::cluster_options options;
  options.configure = [](ferry::worker_config& config) { config.num_worker_threads = 27; };
  ferry_test::cluster group(1, options);
  CHECK(group[0].debug_info("agent.thread_pool_size") == "27");
  CHECK(group[0].debug_info("agent.client_active_calls") == "0");
  CHECK(group[0].debug_info().size() >= 3);
  expect_error(ferry::errc::invalid_argument, "agent.thread_pool_size", [&] { (void)group[0].debug_info("threads"); });
}

TEST_CASE("every transport of the program carries calls when it is the only one") {
  for (const char* name : {"inproc", "shm", "unix", "tcp"}) {
    CAPTURE(name);
    ferry_test::cluster_options options;
    options.configure = [&](ferry::worker_config& config) { config.transports = {name}; };
    ferry_test::cluster group(2, options);
    CHECK(group[0].get_worker_info("worker1").id().value == 1);
  }
}

}  // namespace options_test
