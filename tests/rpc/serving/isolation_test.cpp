// What is slow, strange or over in one call holds up no other.

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "rpc/worker/worker_core.hpp"

namespace isolation_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;
using ferry_test::cluster_options;

ferry_test::gate door;
int slow(int value) {
  door.pass();
  return value;
}
int quick(int value) { return value + 1; }
int plus_one(int value) { return value + 1; }

// Its reader waits at the gate.
struct slow_to_read {
  int value = 0;
  static inline std::atomic<bool> waits{false};
  template <class Archive>
  void save(Archive& archive) const {
    archive(value);
  }
  template <class Archive>
  void load(Archive& archive) {
    archive(value);
    if (waits.load()) door.pass();
  }
};
slow_to_read give_slow() { return {}; }

// Its reader calls the worker that it came from.
struct calls_back {
  int value = 0;
  static inline std::atomic<bool> calls{false};
  template <class Archive>
  void save(Archive& archive) const {
    archive(value);
  }
  template <class Archive>
  void load(Archive& archive) {
    archive(value);
    if (calls.load()) value = ferry::rpc_sync<plus_one>({"worker1", {.timeout = 30s}}, value);
  }
};
calls_back give(int value) {
  calls_back result;
  result.value = value;
  return result;
}

std::atomic<int> ran{0};
int mark(int value) {
  ++ran;
  return value;
}

// A call without a future, to send what no call function would.
struct bare_call final : ferry::pending_call {
  std::promise<ferry::inbound_message> reply;
  void on_reply(ferry::inbound_message&& message) noexcept override { reply.set_value(std::move(message)); }
  void on_failure(errc code, ferry::call_phase, const std::string& text) noexcept override {
    reply.set_exception(ferry::make_error(code, text));
  }
};

std::atomic<int> computing{0};
std::atomic<int> most_computing{0};
void compute(int microseconds) {
  const int together = ++computing;
  for (int seen = most_computing.load(); seen < together && !most_computing.compare_exchange_weak(seen, together);) {
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
  while (std::chrono::steady_clock::now() < end) continue;
  --computing;
}

cluster_options over(const char* transport) {
  return {.configure = [transport](ferry::worker_config& config) { config.transports = {transport}; }};
}
std::ptrdiff_t open_descriptors() { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); }

}  // namespace isolation_test
template <>
struct ferry::method_traits<&isolation_test::quick> {
  static constexpr bool inline_handler = true;
};

namespace isolation_test {

TEST_CASE("the reply of an inline handler does not wait for a slow handler that was read before it") {
  for (const char* transport : {"tcp", "unix", "shm"}) {
    CAPTURE(transport);
    cluster group(2, over(transport));
    for (int round = 0; round != 20; ++round) {
      door.reset();
      const auto first = group[0].rpc_async<slow>("worker1", round);
      const auto second = group[0].rpc_async<quick>({"worker1", {.timeout = 30s}}, round);
      CHECK(second.get() == round + 1);
      door.open();
      CHECK(first.get() == round);
    }
  }
}

TEST_CASE("a result that is slow to decode holds up neither other peers' results nor the same peer's") {
  for (const char* transport : {"tcp", "unix", "shm", "inproc"}) {
    CAPTURE(transport);
    cluster group(3, over(transport));
    for (int round = 0; round != 20; ++round) {
      door.reset();
      slow_to_read::waits = true;
      const auto first = group[0].rpc_async<give_slow>("worker1");
      const auto other = group[0].rpc_async<plus_one>({"worker2", {.timeout = 30s}}, round);
      const auto same = group[0].rpc_async<plus_one>({"worker1", {.timeout = 30s}}, round);
      CHECK(other.get() == round + 1);
      CHECK(same.get() == round + 1);
      door.open();
      first.wait();
      slow_to_read::waits = false;
    }
  }
}

TEST_CASE("what decodes a result may call the worker that it came from") {
  for (const char* transport : {"tcp", "unix", "shm", "inproc"}) {
    CAPTURE(transport);
    cluster group(2, over(transport));
    calls_back::calls = true;
    CHECK(group[0].rpc_sync<give>("worker1", 1).value == 2);
    CHECK(group[0].rpc_async<give>("worker1", 2).get().value == 3);
    std::vector<ferry::future<calls_back>> many;
    for (int i = 0; i != 20; ++i) many.push_back(group[0].rpc_async<give>("worker1", i));
    for (int i = 0; i != 20; ++i) CHECK(many[static_cast<std::size_t>(i)].get().value == i + 1);
    calls_back::calls = false;
  }
}

TEST_CASE("a request with a critical extension record that the callee does not know is refused; others are skipped") {
  captured_log log;
  cluster group(2);
  CHECK(group[0].rpc_sync<mark>("worker1", 1) == 1);
  const auto core = ferry::detail::current_worker();
  const ferry::worker_id peer{core->agent().self().id().value == 0 ? 1 : 0};
  const auto& method = ferry::detail::method_of<&mark>();
  for (const bool critical : {true, false}) {
    ran = 0;
    ferry::outgoing_message request;
    request.header.kind = ferry::frame_kind::request;
    request.header.flags = ferry::frame_no_deadline;
    request.header.method = method.id;
    request.header.signature = method.signature;
    ferry::encode_values<int>(request.bytes, request.tensors, 5);
    const std::byte content[4]{};
    request.add_extension(4711, critical, content);
    bare_call call;
    (void)core->agent().call(peer, std::move(request), call, {}, ferry::reply_wait::none);
    ferry::inbound_message reply = call.reply.get_future().get();
    core->agent().finished_calls(1);
    CHECK(ran == (critical ? 0 : 1));
    CHECK(reply.header.kind == (critical ? ferry::frame_kind::failure : ferry::frame_kind::reply));
    if (!critical) continue;
    expect_error(errc::unknown_extension, "4711", [&] {
      ferry::detail::check_reply({core, &method, core->agent().members().find(peer), ferry::timeout()}, reply);
    });
  }
}

TEST_CASE("a reply with a critical extension record that the caller does not know is an error") {
  cluster group(2);
  const auto core = ferry::detail::current_worker();
  ferry::outgoing_message message;
  message.header.kind = ferry::frame_kind::reply;
  message.add_extension(4712, true, {});
  message.finish();
  ferry::inbound_message reply;
  reply.header = message.header;
  reply.storage = ferry::shared_block::adopt(std::move(message.bytes));
  reply.extensions = {reply.storage.data() + ferry::frame_header::encoded_size, reply.header.extension_bytes};
  const auto& method = ferry::detail::method_of<&mark>();
  expect_error(errc::unknown_extension, "4712", [&] {
    ferry::detail::check_reply({core, &method, core->agent().self(), ferry::timeout()}, reply);
  });
}

TEST_CASE("a reply with more extension records than the caller takes is an error") {
  cluster group(2);
  const auto core = ferry::detail::current_worker();
  const auto& method = ferry::detail::method_of<&mark>();
  const std::uint32_t most = core->limits().max_extensions;
  for (const std::uint32_t count : {most, most + 1}) {
    CAPTURE(count);
    ferry::outgoing_message message;
    for (std::uint32_t i = 0; i != count; ++i) message.add_extension(4713, false, {});
    ferry::inbound_message reply;
    reply.header.kind = ferry::frame_kind::reply;
    reply.extensions = message.bytes.bytes().subspan(ferry::frame_header::encoded_size);
    const auto check = [&] {
      ferry::detail::check_reply({core, &method, core->agent().self(), ferry::timeout()}, reply);
    };
    if (count == most) {
      CHECK_NOTHROW(check());
    } else {
      expect_error(errc::limit_exceeded, "max_extensions", check);
    }
  }
}

TEST_CASE("futures that are kept keep no descriptors of connections that are gone") {
  std::vector<ferry::future<int>> kept;
  { cluster warm_up(2, over("tcp")); }
  const auto before = open_descriptors();
  for (int i = 0; i != 10; ++i) {
    cluster group(2, over("tcp"));
    kept.push_back(group[0].rpc_async<plus_one>("worker1", i));
    CHECK(kept.back().get() == i + 1);
    CHECK(group[0].rpc_sync<plus_one>("worker1", i) == i + 1);
  }
  // The reactor, which the futures keep, has three descriptors of its own, and closing takes a moment.
  const auto until = ferry::clock::now() + ferry_test::gate::limit;
  while (open_descriptors() > before + 6 && ferry::clock::now() < until) std::this_thread::yield();
  CHECK(open_descriptors() <= before + 6);
}

TEST_CASE("handlers that compute run side by side, also where a thread spun for short calls before") {
  if (std::thread::hardware_concurrency() < 2) return;
  for (const char* transport : {"inproc", "unix", "shm"}) {
    CAPTURE(transport);
    cluster group(2, over(transport));
    for (int i = 0; i != 300; ++i) (void)group[0].rpc_sync<plus_one>("worker1", i);
    most_computing = 0;
    std::vector<ferry::future<void>> under_way;
    for (int i = 0; i != 400 && most_computing.load() < 2; ++i) {
      under_way.push_back(group[0].rpc_async<compute>("worker1", 300));
      if (under_way.size() == 8) {
        under_way.front().get();
        under_way.erase(under_way.begin());
      }
    }
    for (const auto& each : under_way) each.get();
    CHECK(most_computing.load() >= 2);
  }
}

}  // namespace isolation_test
