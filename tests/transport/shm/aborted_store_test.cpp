// A process that ends before or after any of the stores that it makes to memory which it shares: the other end of its connection
// gets what had arrived, learns of the end, and has all of its memory back.

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/tensor/shared_allocator.hpp>

#include <ferry/test_kit/child_process.hpp>
#include <ferry/test_kit/transport_kit.hpp>
#include "../attacked_transport.hpp"
#include "stores_until_death.hpp"
#include "transport/shm/shared_rings.hpp"
#include "watchdog.hpp"

namespace aborted_store_test {

namespace {

using namespace ferry::test_kit;
namespace d = ferry::detail;
using ferry_test::stores_until_death;
using transport_test::attacked_transport;

// What the process sends, by its number, and what it is answered. Messages before the first are large enough to fill the ring, so that
// ordinary tensors are handed over from then on.
struct exchange {
  enum class from : std::uint8_t { process, server };
  enum : std::uint64_t { filling, plain, copied, lent, handed_over, all };
  [[nodiscard]] static std::size_t payload(std::uint64_t id) { return 40 + 100 * id; }
  [[nodiscard]] static bool has_tensor(std::uint64_t id, from end) {
    return end == from::process ? id != plain : id == lent;
  }
  [[nodiscard]] static std::int64_t elements(std::uint64_t id) {
    return id == copied ? 3000 : std::int64_t{256} << 10U;
  }
  [[nodiscard]] static ferry::outgoing_message make(std::uint64_t id, from end) {
    std::vector<ferry::tensor> tensors;
    if (has_tensor(id, end)) tensors.push_back(make_tensor(id, elements(id)));
    if (id == lent) tensors[0] = ferry::shared_allocator().copy(tensors[0]);
    return make_message(id, payload(id), std::move(tensors));
  }
  [[nodiscard]] static bool is(const ferry::inbound_message& arrived, std::uint64_t id, from end) {
    if (!is_message(arrived, id, payload(id)) || arrived.tensors.size() != (has_tensor(id, end) ? 1 : 0)) return false;
    return arrived.tensors.empty() || is_tensor(arrived.tensors[0], id, elements(id));
  }
};

constexpr const char* memory_variable = "ABORTED_STORE_TEST_MEMORY";
constexpr const char* messages_variable = "ABORTED_STORE_TEST_MESSAGES";
constexpr const char* address_variable = "ABORTED_STORE_TEST_ADDRESS";
constexpr const char* number_variable = "ABORTED_STORE_TEST_NUMBER";
constexpr const char* moment_variable = "ABORTED_STORE_TEST_MOMENT";

// Sends the messages, each when the answer to the one before it has come, and tells how many stores that took.
void send_until_death() {
  const auto loop = test_reactor();
  const auto over = ferry::transport_traits<ferry::shm>::open(*loop);
  ferry::transport_options options;
  options.max_spin = std::chrono::microseconds(0);
  options.shm_ring_bytes = d::smallest_ring;
  ferry::hello greeting = hello_to("server");
  greeting.features = ferry::feature_device_tensors;  // without which nothing is lent
  auto result = connect(*over, given(address_variable), greeting, options);
  REQUIRE(result.opened);
  auto memory = ferry_test::mapped_memory("ferry-rings");
  REQUIRE(memory.size() == d::ring_controls_bytes + 2 * d::smallest_ring);
  if (given(memory_variable) == "controls") memory = memory.first(d::ring_controls_bytes);
  const auto log = std::make_shared<recorder>();
  result.opened->start(log);
  const auto send = [&](std::uint64_t id) {
    result.opened->send(exchange::make(id, exchange::from::process));
    const auto answers = log->take(1);
    REQUIRE(answers.size() == 1);
    REQUIRE(exchange::is(answers[0], id, exchange::from::server));
  };
  while (ferry::shared_allocator().stats().handed_over_bytes == 0) send(exchange::filling);
  stores_until_death::watch(
      memory, std::stol(given(number_variable)),
      given(moment_variable) == "after" ? stores_until_death::moment::after : stores_until_death::moment::before);
  const std::uint64_t messages = std::stoull(given(messages_variable));
  for (std::uint64_t id = 1; id <= messages; ++id) send(id);
  result.opened->close(ferry::make_error(ferry::errc::shutting_down, "all is sent"));
  REQUIRE(log->wait_closed());
  result.opened.reset();
  child_process::tell_parent(std::to_string(stores_until_death::count()));
}

std::uint64_t shared_bytes() { return ferry::shared_allocator().stats().used_bytes; }

// One process after the other, which ends a store later each; until one is through.
void end_at_every_store(std::uint64_t messages, const std::string& memory, long least_stores) {
  attacked_transport<ferry::shm> shm([](recorder& log) {
    log.on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
      from.send(exchange::make(message.header.call_id, exchange::from::server));
    };
  });
  const std::uint64_t before = shared_bytes();
  for (const std::string when : {"before", "after"}) {
    CAPTURE(when);
    long number = 1;
    for (int status = -1; status != 0; ++number) {
      CAPTURE(number);
      const std::size_t index = shm.server->accepted_count();
      auto child = child_process::in_role("sender", {{address_variable, shm.address},
                                                     {memory_variable, memory},
                                                     {messages_variable, std::to_string(messages)},
                                                     {number_variable, std::to_string(number)},
                                                     {moment_variable, when}});
      const auto [far_end, far_log] = shm.server->accepted(index);
      REQUIRE(far_log->wait_closed());
      const std::string stores = child.read_line();
      status = child.wait();
      REQUIRE((status == 0 || status == 128 + SIGKILL));
      auto arrived = far_log->take(0);
      std::erase_if(arrived, [](const ferry::inbound_message& each) {
        return exchange::is(each, exchange::filling, exchange::from::process);
      });
      for (std::size_t i = 0; i != arrived.size(); ++i) CHECK(exchange::is(arrived[i], i + 1, exchange::from::process));
      CHECK(far_log->times_closed() == 1);
      CHECK_FALSE(far_log->saw_late_message());
      if (status == 0) {
        CHECK(arrived.size() == messages);
        CHECK(std::stol(stores) >= least_stores);
        CHECK(std::stol(stores) < number);
      }
      arrived.clear();
      const ferry_test::watchdog limit("memory that is still lent to a process that has ended");
      while (shared_bytes() != before) std::this_thread::yield();
    }
    CHECK(number > least_stores);
  }
  shm.serves_others();
}

}  // namespace

TEST_CASE("a process that ends at any store to what both ends share of a ring harms no other") {
  if (child_process::current_role() == "sender") return send_until_death();
  if (!ferry_test::can_step) return;
  SUBCASE("one small message, and all of the memory") { end_at_every_store(exchange::plain, "everything", 5); }
  SUBCASE("tensors that are copied, handed over and lent, and the memory that says so") {
    end_at_every_store(exchange::all - 1, "controls", 12);
  }
}

}  // namespace aborted_store_test
