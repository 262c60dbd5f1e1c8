// Calls with tensors on devices between processes.

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "device_group.hpp"
#include "expect_error.hpp"
#include "processes.hpp"

namespace device_processes_test {

using namespace std::chrono_literals;
using namespace device_calls;
using ferry::device_map;
using ferry::errc;
using ferry::tensor;
using ferry_test::child_process;

tensor second_of(const tensor& t) { return duplicate(t); }
int device_of(const tensor& t) { return t.device().is_cpu() ? -1 : t.device().index; }
tensor made_on(int index, int value, std::int64_t bytes) {
  return filled(gpu(index), static_cast<unsigned char>(value), bytes);
}

namespace {

ferry::worker joined(const std::string& meeting, int rank, const std::string& transport, const device_map& map) {
  native_options options;
  options.transports = {transport};
  options.heartbeat_interval = 500ms;
  options.lease = 5s;
  if (!map.empty()) options.set_device_map("worker1", map);
  return ferry::init_rpc<ferry::native>(
      {.name = ferry_test::worker_name(rank), .rank = rank, .world_size = 2, .init_method = meeting}, options);
}

// Arguments: init method, transport.
const ferry_test::role serving("device worker", [](const std::vector<std::string>& arguments) {
  ferry::worker self = joined(arguments.at(0), 1, arguments.at(1), {});
  self.shutdown();
  return 0;
});

// worker0 is here, worker1 in another process.
class process_pair {
 public:
  process_pair(const std::string& transport, const device_map& map)
      : child({.role = "device worker", .arguments = {meeting(), transport}}),
        self(joined(meeting(), 0, transport, map)) {}
  void leave() {
    self.shutdown();
    CHECK(child.wait() == 0);
  }

 private:
  std::string meeting() { return "file://" + directory_.file("store"); }
  ferry_test::temporary_directory directory_;
  ferry_test::watchdog limit_{"a test with devices and processes"};

 public:
  child_process child;
  ferry::worker self;
};

constexpr std::int64_t piece = ferry::staging_piece;

}  // namespace

TEST_CASE("[row 196] [row 202] tensors on devices are sent to another process and come back by the inverse map") {
  for (const char* transport : {"tcp", "unix", "shm"}) {
    process_pair pair(transport, {{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}});
    for (const auto how : {fake_cuda::schedule::newest_first, fake_cuda::schedule::random}) {
      fake_cuda::set_schedule(how);
      for (const std::int64_t bytes : {std::int64_t{1000}, 7 * piece + 11}) {
        for (unsigned char value = 1; value != 4; ++value) {
          for (const bool blocking : {true, false}) {
            const tensor t = filled(gpu(value % 2), value, bytes);
            CHECK(call<device_of>(pair.self, blocking, "worker1", t) == (value + 1) % 2);
            const tensor back = call<second_of>(pair.self, blocking, "worker1", t);
            CHECK(back.device() == t.device());
            CHECK(value_read(back) == value);
          }
        }
      }
    }
    fake_cuda::set_schedule(fake_cuda::schedule::random);
    pair.leave();
  }
}

TEST_CASE("[row 198] CPU arguments arrive on a device of another process and come back, and the other way round") {
  for (const device_map& map : {device_map{{"cpu", "cuda:1"}}, device_map{{"cuda:1", "cpu"}}}) {
    process_pair pair("tcp", map);
    const tensor t = filled(map.begin()->from, 8, 2 * piece + 1);
    CHECK(pair.self.rpc_sync<device_of>("worker1", t) == (map.begin()->to.is_cpu() ? -1 : 1));
    const tensor back = pair.self.rpc_sync<second_of>("worker1", t);
    CHECK(back.device() == t.device());
    CHECK(value_read(back) == 8);
    pair.leave();
  }
}

namespace {

// The memory in use in this process.
struct in_use {
  std::uint64_t staging = ferry::get_staging_memory_stats(ferry::device_kind::cuda).blocks_in_use;
  std::uint64_t lost = ferry::get_staging_memory_stats(ferry::device_kind::cuda).blocks_lost;
  std::size_t blocks = fake_cuda::blocks_in_use(0);
  [[nodiscard]] bool no_more_than(const in_use& other) const {
    return staging <= other.staging && blocks <= other.blocks && lost == other.lost;
  }
};
in_use now() {
  (void)ferry::get_device_memory_stats(gpu(0));  // frees what is parked and done
  fake_cuda::drain();
  return {};
}

}  // namespace

TEST_CASE("a peer that dies while tensors are being written to it leaves nothing in use") {
  const ferry_test::captured_log quiet;
  process_pair pair("tcp", {{"cuda:0", "cuda:1"}});
  const tensor t = filled(gpu(0), 1, 8 * piece);
  CHECK(value_read(pair.self.rpc_sync<second_of>("worker1", t)) == 1);
  REQUIRE(becomes([] { return now().staging == 0; }));
  const in_use before = now();
  std::vector<ferry::future<tensor>> calls;
  pair.child.stop();  // it stops reading
  for (int i = 0; i != 6; ++i) calls.push_back(pair.self.rpc_async<second_of>("worker1", filled(gpu(0), 2, piece)));
  calls.push_back(pair.self.rpc_async<second_of>("worker1", t));
  CHECK(becomes([&] { return in_use().staging > before.staging; }));
  pair.child.kill(SIGKILL);
  for (const auto& each : calls) expect_error(errc::peer_lost, "", [&] { each.get(); });
  calls.clear();
  const bool given_back = becomes([&] { return now().no_more_than(before); });
  const in_use after;
  CAPTURE(after.staging);
  CAPTURE(after.lost - before.lost);
  CAPTURE(after.blocks - before.blocks);
  CHECK(given_back);
  pair.self.shutdown(false);
}

TEST_CASE("a peer that dies while its tensor arrives leaves nothing in use") {
  const ferry_test::captured_log quiet;
  process_pair pair("tcp", {{"cuda:0", "cuda:1"}});
  CHECK(value_read(pair.self.rpc_sync<made_on>("worker1", 1, 3, piece)) == 3);
  REQUIRE(becomes([] { return now().staging == 0; }));
  const in_use before = now();
  ferry::future<tensor> result;
  ferry::device_memory_trim(gpu(0));  // there is room without what a device would have to free first
  {
    const fake_cuda::pause nothing_runs;  // in this process: copies to the device make no progress
    result = pair.self.rpc_async<made_on>("worker1", 1, 4, 30 * piece);
    CHECK(becomes([] { return ferry::get_staging_memory_stats(ferry::device_kind::cuda).blocks_awaited >= 3; }));
    CHECK(fake_cuda::blocks_in_use(0) > before.blocks);
    pair.child.kill(SIGKILL);
  }
  expect_error(errc::peer_lost, "", [&] { result.get(); });
  result = {};
  const bool given_back = becomes([&] { return now().no_more_than(before); });
  const in_use after;
  CAPTURE(after.staging);
  CAPTURE(after.lost - before.lost);
  CAPTURE(after.blocks - before.blocks);
  CHECK(given_back);
  pair.self.shutdown(false);
}

}  // namespace device_processes_test
