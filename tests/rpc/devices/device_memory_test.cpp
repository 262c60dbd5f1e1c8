// Tensors that a process reads from the memory of another process's GPU: the channel cuda_ipc.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/tensor/factories.hpp>

#include "captured_log.hpp"
#include "device_group.hpp"
#include "expect_error.hpp"
#include "processes.hpp"

namespace device_memory_test {

using namespace std::chrono_literals;
using namespace device_calls;
using ferry::device_map;
using ferry::errc;
using ferry::tensor;
using ferry_test::ask_parent;
using ferry_test::child_process;

constexpr std::int64_t large = static_cast<std::int64_t>(ferry::least_direct);

// ---- methods of the other process

std::mutex keeping;  // guards kept()
std::vector<tensor>& kept() {
  static std::vector<tensor> all;
  return all;
}
std::optional<fake_cuda::pause>& held() {
  static std::optional<fake_cuda::pause> one;
  return one;
}

tensor second_of(const tensor& t) { return duplicate(t); }
std::vector<int> values_of(const std::vector<tensor>& all) {
  std::vector<int> found;
  for (const tensor& each : all) found.push_back(value_read(each));
  return found;
}
int value_of_one(const tensor& t) { return value_read(t); }
// For a later call, which runs in the order of other streams.
void keep(const tensor& t) {
  ferry::current_stream(t.device()).synchronize();
  const std::lock_guard lock(keeping);
  kept().push_back(t);
}
std::vector<int> values_kept() {
  const std::lock_guard lock(keeping);
  std::vector<int> found;
  for (const tensor& each : kept()) found.push_back(value_read(each));
  kept().clear();
  return found;
}
tensor made_on(int index, int value, std::int64_t bytes) {
  return filled(gpu(index), static_cast<unsigned char>(value), bytes);
}
// A handler whose work on the device waits for the program.
std::atomic<bool> may_end{false};
void occupy(const tensor& t) {
  {
    const std::lock_guard lock(keeping);
    kept().push_back(t);
  }
  ferry::current_stream(t.device())
      .call_on_host(
          [](void*) {
            while (!may_end.load()) std::this_thread::yield();
          },
          nullptr);
}
std::int64_t elements_of(const tensor& t) { return t.numel(); }
void drop_kept() {
  const std::lock_guard lock(keeping);
  kept().clear();
}
// While it is held, no device of the other process does anything.
std::mutex holding;  // guards held()
void hold_devices() {
  const std::lock_guard lock(holding);
  held().emplace();
}
void fail_next(int which, int error) { fake_cuda::fail(static_cast<fake_cuda::call>(which), error); }

namespace {

using set_up = std::function<void(native_options&)>;

ferry::worker joined(const std::string& meeting, int rank, int size, const set_up& more) {
  native_options options;
  options.transports = {"shm", "unix"};
  options.heartbeat_interval = 500ms;
  options.lease = 5s;
  if (more) more(options);
  return ferry::init_rpc<ferry::native>(
      {.name = ferry_test::worker_name(rank), .rank = rank, .world_size = size, .init_method = meeting}, options);
}

// Arguments: init method, rank, size of the group, "not" to share no memory.
const ferry_test::role serving("reader of device memory", [](const std::vector<std::string>& arguments) {
  ferry::worker self =
      joined(arguments.at(0), std::stoi(arguments.at(1)), std::stoi(arguments.at(2)),
             [&](native_options& options) { options.transport.share_device_memory = arguments.at(3) != "not"; });
  std::thread orders([] {
    for (std::string order; (order = ask_parent()) != "leave";) {
      const std::lock_guard lock(holding);
      if (order == "let devices go") held().reset();
      if (order == "end work") may_end.store(true);
    }
  });
  self.shutdown();
  orders.join();
  return 0;
});

const device_map swapped{{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}};

// worker0 is here, the others are processes.
class processes {
 public:
  explicit processes(int others = 1, const device_map& map = swapped, const set_up& more = {},
                     const std::string& how = "share") {
    for (int rank = 1; rank <= others; ++rank) {
      children.push_back(std::make_unique<child_process>(
          ferry_test::child_options{.role = "reader of device memory",
                                    .arguments = {meeting(), std::to_string(rank), std::to_string(others + 1), how},
                                    .environment = {{"FERRY_FAKE_CUDA_MEMORY", "512"}}}));
    }
    self = joined(meeting(), 0, others + 1, [&](native_options& options) {
      for (int rank = 1; rank <= others; ++rank) options.set_device_map(ferry_test::worker_name(rank), map);
      if (more) more(options);
    });
  }
  void leave() {
    for (const auto& each : children) each->write_line("leave");
    self.shutdown();
    for (const auto& each : children) CHECK(each->wait() == 0);
  }

 private:
  std::string meeting() { return "file://" + directory_.file("store"); }
  ferry_test::temporary_directory directory_;
  ferry_test::watchdog limit_{"a test of memory between processes"};

 public:
  std::vector<std::unique_ptr<child_process>> children;
  ferry::worker self;
};

std::string channel_between(const ferry::worker& self, const std::string& peer, int from, int to) {
  for (const auto& each : self.route(peer).devices) {
    if (each.from == gpu(from) && each.to == gpu(to)) return each.channel;
  }
  return "none";
}
std::string reason_against(const ferry::worker& self, const std::string& peer, int from, int to) {
  for (const auto& each : self.route(peer).devices) {
    if (each.from != gpu(from) || each.to != gpu(to)) continue;
    for (const auto& skipped : each.skipped) {
      if (skipped.name == "cuda_ipc") return skipped.reason;
    }
  }
  return {};
}

// How many blocks this process has named to others since.
class names_since {
 public:
  [[nodiscard]] std::uint64_t count() const {
    return fake_cuda::calls(fake_cuda::call::mem_pool_export_pointer) - before_;
  }

 private:
  const std::uint64_t before_ = fake_cuda::calls(fake_cuda::call::mem_pool_export_pointer);
};

std::size_t blocks_of(int index) {
  (void)ferry::get_device_memory_stats(gpu(index));  // frees what is parked and done
  fake_cuda::drain();
  return fake_cuda::blocks_in_use(index);
}

}  // namespace

TEST_CASE("large tensors go from GPU to GPU of another process without passing the host, and come back so") {
  processes all;
  CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 1, large))) == 1);
  CHECK(channel_between(all.self, "worker1", 0, 1) == "cuda_ipc");
  for (const auto how :
       {fake_cuda::schedule::newest_first, fake_cuda::schedule::oldest_first, fake_cuda::schedule::random}) {
    fake_cuda::set_schedule(how);
    for (const std::int64_t bytes : {large, 3 * large + 77}) {
      for (int value = 1; value != 6; ++value) {
        const auto staged = ferry::get_staging_memory_stats(ferry::device_kind::cuda);
        const names_since named;
        CAPTURE(value);
        CAPTURE(ferry::to_string(all.self.route("worker1")));
        const tensor t = filled(gpu(value % 2), static_cast<unsigned char>(value), bytes);
        const tensor back = call<second_of>(all.self, value % 2 == 0, "worker1", t);
        CHECK(back.device() == t.device());
        CHECK(value_read(back) == value);
        CHECK(named.count() == 1);
        CHECK(ferry::get_staging_memory_stats(ferry::device_kind::cuda).blocks_in_use == staged.blocks_in_use);
      }
    }
  }
  fake_cuda::set_schedule(fake_cuda::schedule::random);
  all.leave();
}

TEST_CASE("small tensors, those of the CPU and views of foreign memory go their own way in the same message") {
  processes all;
  const std::vector<tensor> mixed{filled(gpu(0), 1, large),     filled(gpu(1), 2, 100), filled(host, 3, 2 * large),
                                  filled(gpu(1), 4, 2 * large), filled(gpu(0), 5, 0),   filled(gpu(0), 6, large)};
  CHECK(all.self.rpc_sync<value_of_one>("worker1", filled(gpu(0), 1, large)) == 1);
  const tensor foreign = filled(gpu(0), 7, large);
  std::vector<tensor> sent = mixed;
  sent.push_back(
      ferry::from_blob(foreign.data(), {large}, ferry::dtype::u8, std::make_shared<tensor>(foreign), gpu(0)));
  sent.push_back(filled(gpu(0), 8, 2 * large).slice(0, large / 2, large / 2 + large));  // in the middle of its block
  for (int round = 0; round != 5; ++round) {
    const names_since named;
    CHECK(all.self.rpc_sync<values_of>("worker1", sent) == std::vector<int>{1, 2, 3, 4, -1, 6, 7, 8});
    CHECK(named.count() == 4);
  }
  all.leave();
}

TEST_CASE("the same memory is lent many times at once, to several processes") {
  processes all(2);
  const tensor t = filled(gpu(0), 9, large);
  std::vector<ferry::future<int>> results;
  for (int i = 0; i != 60; ++i)
    results.push_back(all.self.rpc_async<value_of_one>(i % 2 == 0 ? "worker1" : "worker2", t));
  for (const auto& each : results) CHECK(each.get() == 9);
  CHECK(all.self.rpc_sync<values_of>("worker1", std::vector<tensor>{t, t.slice(0), t.slice(0, 0, large)}) ==
        std::vector<int>{9, 9, 9});
  all.leave();
}

TEST_CASE("what the caller writes after the answer does not change what has been sent") {
  processes all;
  fake_cuda::set_schedule(fake_cuda::schedule::newest_first);
  const tensor t = filled(gpu(0), 0, large);
  for (int value = 1; value != 12; ++value) {
    ferry::operations_of(gpu(0).kind)
        .fill(gpu(0), t.data(), static_cast<unsigned char>(value), static_cast<std::size_t>(large),
              ferry::current_stream(gpu(0)).handle());
    all.self.rpc_sync<keep>("worker1", t);
    ferry::operations_of(gpu(0).kind)
        .fill(gpu(0), t.data(), 77, static_cast<std::size_t>(large), ferry::current_stream(gpu(0)).handle());
    CHECK(all.self.rpc_sync<values_kept>("worker1") == std::vector<int>{value});
  }
  fake_cuda::set_schedule(fake_cuda::schedule::random);
  all.leave();
}

TEST_CASE("memory is lent until it has been read, and comes back without another message") {
  processes all;
  CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 1, large))) == 1);
  REQUIRE(becomes([] { return blocks_of(0) <= 1; }));  // the anchor
  const std::size_t before = blocks_of(0);
  all.self.rpc_sync<hold_devices>("worker1");
  all.self.notify<keep>("worker1", filled(gpu(0), 5, large));
  fake_cuda::drain();
  CHECK(blocks_of(0) == before + 1);
  all.children[0]->write_line("let devices go");
  CHECK(becomes([&] { return blocks_of(0) == before; }));
  std::vector<int> values;  // a notification has no answer: its handler may not have run yet
  CHECK(becomes([&] {
    values = all.self.rpc_sync<values_kept>("worker1");
    return !values.empty();
  }));
  CHECK(values == std::vector<int>{5});
  all.leave();
}

TEST_CASE("a message arrives when it has been read, so its answer never comes before") {
  processes all;
  CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 1, large))) == 1);
  all.self.rpc_sync<hold_devices>("worker1");
  const auto result = all.self.rpc_async<keep>("worker1", filled(gpu(0), 6, large));
  CHECK_FALSE(result.wait_for(50ms));
  all.children[0]->write_line("let devices go");
  result.get();
  CHECK(all.self.rpc_sync<values_kept>("worker1") == std::vector<int>{6});
  all.leave();
}

TEST_CASE("more than a connection lends at once goes through the host") {
  processes all;
  const tensor t = filled(gpu(0), 3, large);
  CHECK(value_read(all.self.rpc_sync<second_of>("worker1", t)) == 3);
  all.self.rpc_sync<hold_devices>("worker1");
  std::vector<ferry::future<std::int64_t>> results;
  const names_since named;
  for (int i = 0; i != 200; ++i) results.push_back(all.self.rpc_async<elements_of>("worker1", t));
  CHECK(becomes([&] { return named.count() >= 200; }));
  all.children[0]->write_line("let devices go");
  for (const auto& each : results) CHECK(each.get() == large);
  CHECK(all.self.rpc_sync<value_of_one>("worker1", t) == 3);
  REQUIRE(becomes([&] { return t.storage().use_count() == 1; }));
  all.leave();
}

TEST_CASE("memory comes back, and is lent again, although a handler's work on the device does not end") {
  processes all;
  const tensor t = filled(gpu(0), 3, large);
  CHECK(value_read(all.self.rpc_sync<second_of>("worker1", t)) == 3);
  for (int i = 0; i != 3; ++i) all.self.rpc_sync<occupy>({"worker1", {.timeout = 20s}}, t);
  for (int i = 0; i != 20; ++i) CHECK(all.self.rpc_sync<elements_of>({"worker1", {.timeout = 20s}}, t) == large);
  CHECK(becomes([&] { return t.storage().use_count() == 1; }));
  all.children[0]->write_line("end work");
  all.self.rpc_sync<drop_kept>("worker1");
  all.leave();
}

TEST_CASE("a process that dies while it reads gives back what it was lent") {
  const ferry_test::captured_log quiet;
  processes all;
  CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 1, large))) == 1);
  REQUIRE(becomes([] { return blocks_of(0) <= 1; }));
  const std::size_t before = blocks_of(0);
  all.self.rpc_sync<hold_devices>("worker1");
  const auto result = all.self.rpc_async<second_of>("worker1", filled(gpu(0), 2, large));
  const auto another = all.self.rpc_async<second_of>("worker1", filled(gpu(0), 3, 4 * large));
  fake_cuda::drain();
  CHECK(blocks_of(0) == before + 2);
  all.children[0]->kill(SIGKILL);
  expect_error(errc::peer_lost, "", [&] { result.get(); });
  expect_error(errc::peer_lost, "", [&] { another.get(); });
  CHECK(becomes([&] { return blocks_of(0) == before; }));
  all.self.shutdown(false);
}

TEST_CASE("a worker that leaves while its memory is read keeps it until the reader is done") {
  const ferry_test::captured_log quiet;
  std::size_t before = 0;
  {
    processes all;
    CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 1, large))) == 1);
    REQUIRE(becomes([] { return blocks_of(0) <= 1; }));
    before = blocks_of(0);
    all.self.rpc_sync<hold_devices>("worker1");
    auto result = all.self.rpc_async<second_of>("worker1", filled(gpu(0), 2, large));
    fake_cuda::drain();
    CHECK(blocks_of(0) == before + 1);
    all.self.shutdown(false);
    expect_error(errc::shutting_down, "", [&] { result.get(); });
    result = {};
    CHECK(blocks_of(0) == before + 1);
    all.children[0]->write_line("let devices go");
    CHECK(becomes([&] { return blocks_of(0) == before; }));
    all.children[0]->kill(SIGKILL);
  }
}

TEST_CASE("memory is not shared where an end does not want to, and the route says why") {
  for (const char* who : {"caller", "callee"}) {
    CAPTURE(who);
    const bool callee = who == std::string("callee");
    processes all(
        1, swapped, [&](native_options& options) { options.transport.share_device_memory = callee; },
        callee ? "not" : "share");
    const names_since named;
    CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 4, 2 * large))) == 4);
    CHECK(named.count() == 0);
    CHECK(channel_between(all.self, "worker1", 0, 1) == "cuda_staged");
    CHECK(reason_against(all.self, "worker1", 0, 1) ==
          "an end of the connection shares no memory of GPUs: it used none that can be shared when the connection was "
          "made, or share_device_memory is false");
    all.leave();
  }
}

TEST_CASE("a device that does not reach the other's memory gets it through the host") {
  processes all(1, {{"cuda:0", "cuda:5"}, {"cuda:1", "cuda:2"}});
  CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 4, 2 * large))) == 4);
  CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(1), 5, 2 * large))) == 5);
  CHECK(channel_between(all.self, "worker1", 0, 5) == "cuda_staged");
  CHECK(channel_between(all.self, "worker1", 1, 2) == "cuda_ipc");  // although the peer does not use cuda:1 itself
  CHECK(reason_against(all.self, "worker1", 0, 5) ==
        "the peer's device cannot read that memory, or was not in use when the connection was made");
  all.leave();
}

TEST_CASE("a block that cannot be mapped ends its call with the reason, and no other") {
  const ferry_test::captured_log quiet;
  processes all;
  CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 1, large))) == 1);
  REQUIRE(becomes([] { return blocks_of(0) <= 1; }));
  const std::size_t before = blocks_of(0);
  constexpr int invalid_value = 1;
  for (const auto which :
       {fake_cuda::call::mem_pool_import_pointer, fake_cuda::call::memory_range, fake_cuda::call::memcpy_async}) {
    CAPTURE(static_cast<int>(which));
    all.self.rpc_sync<fail_next>("worker1", static_cast<int>(which), invalid_value);
    expect_error(errc::device_failure, "",
                 [&] { (void)all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 2, large)); });
    CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 3, large))) == 3);
    CHECK(becomes([&] { return blocks_of(0) == before; }));
  }
  all.leave();
}

TEST_CASE("a block without a name goes through the host") {
  processes all;
  CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 1, large))) == 1);
  constexpr int invalid_value = 1;
  fake_cuda::fail(fake_cuda::call::mem_pool_export_pointer, invalid_value);
  CHECK(value_read(all.self.rpc_sync<second_of>("worker1", filled(gpu(0), 2, 2 * large))) == 2);
  all.leave();
}

}  // namespace device_memory_test
