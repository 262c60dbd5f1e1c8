#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/inproc/handover_slot.hpp"

using ferry::inbound_message;
using ferry::detail::envelope;
using ferry::detail::envelope_queue;
using ferry::detail::handover_slot;

namespace {

std::unique_ptr<envelope> numbered(std::uint64_t number) {
  inbound_message message;
  message.header.call_id = number;
  return std::make_unique<envelope>(std::move(message));
}

bool offer(handover_slot& slot, std::unique_ptr<envelope> message) {
  if (!slot.offer(message.get())) return false;
  (void)message.release();
  return true;
}

}  // namespace

TEST_SUITE_BEGIN("handover slot");

TEST_CASE("a queue of envelopes keeps their order and owns them") {
  envelope_queue first;
  CHECK(first.empty());
  for (std::uint64_t i = 0; i != 3; ++i) first.push(numbered(i));
  envelope_queue second;
  second.swap(first);
  CHECK(first.empty());
  CHECK(second.front().header.call_id == 0);
  CHECK(second.pop()->message.header.call_id == 0);
  second.push(numbered(3));
  for (std::uint64_t i = 1; i != 4; ++i) CHECK(second.pop()->message.header.call_id == i);
  CHECK(second.empty());
  second.push(numbered(4));  // is destroyed with the queue
}

TEST_CASE("only an open slot takes a message, and only one") {
  handover_slot slot;
  CHECK_FALSE(offer(slot, numbered(1)));
  slot.open();
  CHECK(slot.is_open());
  CHECK(offer(slot, numbered(2)));
  CHECK_FALSE(slot.is_open());
  CHECK_FALSE(offer(slot, numbered(3)));
  slot.poke();  // changes nothing: the message is seen anyway
  const auto taken = slot.take();
  REQUIRE(taken);
  CHECK(taken->message.header.call_id == 2);
  CHECK_FALSE(offer(slot, numbered(4)));  // its receiver delivers
  slot.shut();
  CHECK_FALSE(offer(slot, numbered(5)));
}

TEST_CASE("a slot with a message cannot be withdrawn until its receiver has delivered it") {
  handover_slot slot;
  CHECK(slot.withdraw() == handover_slot::withdrawal::none);
  slot.open();
  CHECK(slot.withdraw() == handover_slot::withdrawal::withdrawn);
  CHECK_FALSE(slot.take());
  slot.open();
  slot.poke();
  CHECK_FALSE(slot.take());
  CHECK(slot.withdraw() == handover_slot::withdrawal::withdrawn);
  slot.open();
  CHECK(offer(slot, numbered(1)));
  CHECK(slot.withdraw() == handover_slot::withdrawal::refused);
  CHECK(slot.take());
  CHECK(slot.withdraw() == handover_slot::withdrawal::refused);
  slot.shut();
  CHECK(slot.withdraw() == handover_slot::withdrawal::none);
}

TEST_CASE("leaving takes the message that came last") {
  handover_slot slot;
  slot.open();
  CHECK_FALSE(slot.leave());
  CHECK_FALSE(slot.is_open());
  slot.open();
  slot.poke();
  CHECK_FALSE(slot.leave());
  slot.open();
  CHECK(offer(slot, numbered(7)));
  const auto last = slot.leave();
  REQUIRE(last);
  CHECK(last->message.header.call_id == 7);
  CHECK(slot.withdraw() == handover_slot::withdrawal::refused);
  slot.shut();
}

// As an end uses it: what the slot does not take goes to an inbox, and the messages of each sender keep their order.
TEST_CASE("senders race with a receiver that opens, leaves and is poked") {
  constexpr std::uint64_t each = 20'000;
  constexpr std::uint64_t senders = 3;
  handover_slot slot;
  std::mutex mutex;
  envelope_queue inbox;
  std::atomic<std::uint64_t> handed_over{0};
  std::vector<std::thread> threads;
  for (std::uint64_t sender = 0; sender != senders; ++sender) {
    threads.emplace_back([&, sender] {
      for (std::uint64_t i = 0; i != each; ++i) {
        auto next = numbered(sender * each + i);
        if (slot.offer(next.get())) {
          (void)next.release();
          handed_over.fetch_add(1, std::memory_order_relaxed);
          continue;
        }
        {
          const std::lock_guard lock(mutex);
          inbox.push(std::move(next));
        }
        slot.poke();
      }
    });
  }
  std::vector<std::uint64_t> expected(senders, 0);
  std::uint64_t received = 0;
  bool in_order = true;
  const auto receive = [&](const envelope& message) {
    const std::uint64_t number = message.message.header.call_id;
    in_order = in_order && expected[number / each] == number % each;
    ++expected[number / each];
    ++received;
  };
  std::unique_lock lock(mutex);
  while (received != senders * each) {
    if (!inbox.empty()) {
      receive(*inbox.pop());
      continue;
    }
    slot.open();
    lock.unlock();
    for (int looks = 0; looks != 100 && slot.is_open(); ++looks) {
    }
    auto message = slot.take();
    lock.lock();
    if (!message) message = slot.leave();
    if (message) {
      receive(*message);
      slot.shut();
    }
  }
  lock.unlock();
  for (auto& thread : threads) thread.join();
  CHECK(in_order);
  CHECK(inbox.empty());
  MESSAGE(handed_over.load(), " of ", senders * each, " were handed over");
}

TEST_SUITE_END();
