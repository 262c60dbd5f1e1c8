#pragma once

// Part of the test kit: connections whose receiver has paused, and what a connection reports about messages that are
// not written. transport_conformance() runs it.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/test_kit/transport_kit.hpp>

namespace ferry::test_kit::detail {

/// Waits until `condition` holds; false after a long time.
template <class Condition>
bool comes_true(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

template <class Pair>
void check_pausing() {
  Pair pair;
  // A message that arrives after anything that the far end could have been given so far.
  const auto round_trip = [&](std::uint64_t id) {
    pair.far_end->send(make_message(id, 10));
    REQUIRE(pair.near_log->wait_for_count(id + 1));
  };
  SUBCASE("a paused receiver gets nothing more until it resumes") {
    pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
      if (message.header.call_id == 0) from.pause_reading();
    };
    for (std::uint64_t i = 0; i < 100; ++i) pair.near_end->send(make_message(i, i));
    REQUIRE(pair.far_log->wait_for_count(1));
    for (std::uint64_t i = 0; i < 100; ++i) round_trip(i);
    CHECK(pair.far_log->count() == 1);
    pair.far_end->resume_reading();
    const auto arrived = pair.far_log->take(100);
    REQUIRE(arrived.size() == 100);
    for (std::uint64_t i = 0; i < 100; ++i) CHECK(is_message(arrived[i], i, i));
  }
  SUBCASE("it may pause at each message, and resume from any thread") {
    constexpr std::uint64_t count = 500;
    pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message&) { from.pause_reading(); };
    std::thread sender([&] {
      for (std::uint64_t i = 0; i < count; ++i) pair.near_end->send(make_message(i, i * 100));
    });
    bool each_came = true;
    for (std::uint64_t i = 0; i < count && each_came; ++i) {
      each_came = pair.far_log->wait_for_count(i + 1) && pair.far_log->count() == i + 1;
      pair.far_end->resume_reading();
    }
    sender.join();
    CHECK(each_came);
    const auto arrived = pair.far_log->take(count);
    REQUIRE(arrived.size() == count);
    std::size_t wrong = 0;
    for (std::uint64_t i = 0; i < count; ++i) wrong += is_message(arrived[i], i, i * 100) ? 0 : 1;
    CHECK(wrong == 0);
  }
  SUBCASE("a receiver that is slow with the message it resumed with gets the later ones") {
    // The reading thread may have been one that waits on this connection alone, with no other thread watching it.
    enum : std::uint64_t { pauses, takes_long, comes_afterwards, kinds };
    pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
      if (message.header.call_id % kinds == pauses) from.pause_reading();
      if (message.header.call_id % kinds == takes_long) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    };
    for (std::uint64_t round = 0; round != 10; ++round) {
      pair.near_end->send(make_message(round * kinds + pauses, 10));
      REQUIRE(pair.far_log->wait_for_count(round * kinds + 1));
      pair.near_end->send(make_message(round * kinds + takes_long, 10));
      pair.far_end->resume_reading();
      REQUIRE(pair.far_log->wait_for_count(round * kinds + 2));
      pair.near_end->send(make_message(round * kinds + comes_afterwards, 10));
      REQUIRE(pair.far_log->wait_for_count(round * kinds + 3));
    }
  }
  SUBCASE("it may resume before it has returned, or without having paused") {
    pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
      if (message.header.call_id % 2 == 0) from.pause_reading();
      from.resume_reading();
    };
    for (std::uint64_t i = 0; i < 100; ++i) pair.near_end->send(make_message(i, 10));
    CHECK(pair.far_log->wait_for_count(100));
  }
  SUBCASE("a message with a tensor waits as a whole") {
    pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
      if (message.header.call_id == 0) from.pause_reading();
    };
    pair.near_end->send(make_message(0, 10));
    REQUIRE(pair.far_log->wait_for_count(1));
    pair.near_end->send(make_message(1, 10, {make_tensor(1, 3 << 20)}));
    round_trip(0);
    CHECK(pair.far_log->count() == 1);
    pair.far_end->resume_reading();
    const auto arrived = pair.far_log->take(2);
    REQUIRE(arrived.size() == 2);
    CHECK(is_tensor(arrived[1].tensors.at(0), 1, 3 << 20));
  }
  SUBCASE("the end of the connection is reported once it resumes, after the messages before it") {
    pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
      if (message.header.call_id == 0) from.pause_reading();
    };
    for (std::uint64_t i = 0; i < 3; ++i) pair.near_end->send(make_message(i, 10));
    REQUIRE(pair.far_log->wait_for_count(1));
    pair.near_end->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    pair.far_end->resume_reading();
    CHECK(pair.far_log->wait_closed());
    CHECK(pair.far_log->count() == 3);
    CHECK(pair.far_log->times_closed() == 1);
  }
  // Threads that spin for messages since those have come at once may be given them on another way than the others.
  struct answered final : ferry::drive_condition {
    std::atomic<bool> flag{false};
    [[nodiscard]] bool done() const noexcept override { return flag.load(); }
  } got;
  constexpr std::uint64_t quick = 300;  // messages that are answered at once
  const auto warm_up = [&] {
    pair.near_log->on_arrival = [&](ferry::connection& from, ferry::inbound_message&) {
      got.flag = true;
      from.interrupt_drive();
    };
    for (std::uint64_t i = 0; i != quick; ++i) {
      got.flag = false;
      pair.near_end->send(make_message(i, 10));
      (void)pair.near_end->drive(got, ferry::deadline::after(patience));
      REQUIRE(pair.near_log->wait_for_count(i + 1));
    }
  };
  SUBCASE("a receiver that has answered at once for a while gets nothing more once it has paused") {
    constexpr std::uint64_t later = 500;
    pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
      const std::uint64_t id = message.header.call_id;
      if (id == quick) from.pause_reading();
      if (id < quick) from.send(make_message(id, 10));
    };
    warm_up();
    for (std::uint64_t i = quick; i != quick + later; ++i) {
      pair.near_end->send(make_message(i, 10));
      if (i == quick) REQUIRE(pair.far_log->wait_for_count(quick + 1));
      if (i % 10 == 0) round_trip(pair.near_log->count());
    }
    CHECK(pair.far_log->count() == quick + 1);
    pair.far_end->resume_reading();
    const auto arrived = pair.far_log->take(quick + later);
    REQUIRE(arrived.size() == quick + later);
    std::size_t wrong = 0;
    for (std::uint64_t i = 0; i != quick + later; ++i) wrong += is_message(arrived[i], i, 10) ? 0 : 1;
    CHECK(wrong == 0);
  }
  SUBCASE("a thread that drives a paused connection gets nothing, and all in order once it resumes") {
    constexpr std::uint64_t later = 50;
    pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
      if (message.header.call_id < quick) from.send(make_message(message.header.call_id, 10));
    };
    warm_up();
    pair.near_end->pause_reading();
    pair.far_end->send(make_message(quick, 10));
    got.flag = false;
    std::thread driver([&] { (void)pair.near_end->drive(got, ferry::deadline::after(patience)); });
    bool each_came = true;
    for (std::uint64_t i = quick + 1; i != quick + later && each_came; ++i) {
      pair.far_end->send(make_message(i, 10));
      pair.near_end->send(make_message(i, 10));
      each_came = pair.far_log->wait_for_count(i);
    }
    CHECK(each_came);
    CHECK(pair.near_log->count() == quick);
    pair.near_end->resume_reading();
    const auto arrived = pair.near_log->take(quick + later);
    got.flag = true;
    pair.near_end->interrupt_drive();
    driver.join();
    REQUIRE(arrived.size() == quick + later);
    std::size_t wrong = 0;
    for (std::uint64_t i = 0; i != quick + later; ++i) wrong += is_message(arrived[i], i, 10) ? 0 : 1;
    CHECK(wrong == 0);
  }
  SUBCASE("a paused receiver may close") {
    pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message&) { from.pause_reading(); };
    for (std::uint64_t i = 0; i < 3; ++i) pair.near_end->send(make_message(i, 10));
    REQUIRE(pair.far_log->wait_for_count(1));
    pair.far_end->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    CHECK(pair.far_log->wait_closed());
    CHECK(pair.near_log->wait_closed());
    CHECK(pair.far_log->count() == 1);
  }
}

template <class Pair>
void check_unwritten() {
  constexpr std::uint64_t count = 64;
  constexpr std::size_t size = 1U << 20U;
  constexpr std::uint64_t most = count * (size + 4096);
  Pair pair;
  // Shared with the callbacks, which may still run after this function has returned.
  const auto hold = std::make_shared<std::atomic<bool>>(true);
  pair.far_log->on_arrival = [hold](ferry::connection& from, ferry::inbound_message&) {
    if (*hold) from.pause_reading();
  };
  pair.far_log->forget_messages();
  const auto send_all = [&] {
    for (std::uint64_t i = 0; i < count; ++i) pair.near_end->send(make_message(i, size));
    REQUIRE(pair.far_log->wait_for_count(1));
  };
  const auto go_on = [&] {
    *hold = false;
    pair.far_end->resume_reading();
  };
  const auto written = [&] { return pair.near_end->unwritten_bytes() == 0; };
  CHECK(pair.near_end->unwritten_bytes() == 0);
  CHECK_FALSE(pair.near_end->tell_when_written(0));
  SUBCASE("bytes that a peer does not read are counted, and not twice") {
    send_all();
    CHECK(pair.near_end->unwritten_bytes() > most / 2);  // the system may buffer some
    CHECK(pair.near_end->unwritten_bytes() <= most);
    CHECK(pair.far_end->unwritten_bytes() == 0);
    go_on();
    CHECK(pair.far_log->wait_for_count(count));
    CHECK(comes_true(written));
    CHECK(pair.near_log->times_written() == 0);  // no notification was requested
  }
  SUBCASE("tensors are counted, too") {
    pair.near_end->send(make_message(0, 10));
    REQUIRE(pair.far_log->wait_for_count(1));
    for (std::uint64_t i = 1; i < count; ++i) pair.near_end->send(make_message(i, 10, {make_tensor(i, size)}));
    CHECK(pair.near_end->unwritten_bytes() > most / 2);
    CHECK(pair.near_end->unwritten_bytes() <= most);
    go_on();
    CHECK(pair.far_log->wait_for_count(count));
    CHECK(comes_true(written));
  }
  SUBCASE("a request is answered once, when no more is left than it asked for") {
    const auto left = std::make_shared<std::atomic<std::uint64_t>>(~std::uint64_t{0});
    pair.near_log->on_room = [left](ferry::connection& which) { *left = which.unwritten_bytes(); };
    send_all();
    CHECK_FALSE(pair.near_end->tell_when_written(most));
    CHECK(pair.near_end->tell_when_written(most / 4));
    CHECK(pair.near_log->times_written() == 0);
    go_on();
    CHECK(comes_true([&] { return pair.near_log->times_written() == 1; }));
    CHECK(*left <= most / 4);
    CHECK(comes_true(written));
    CHECK_FALSE(pair.near_end->tell_when_written(0));
    CHECK(pair.near_log->times_written() == 1);
  }
  SUBCASE("of repeated requests only the last one is answered, and the callback may make a new one") {
    const auto asked_again = std::make_shared<std::atomic<int>>(0);
    const auto first_left = std::make_shared<std::atomic<std::uint64_t>>(~std::uint64_t{0});
    pair.near_log->on_room = [asked_again, first_left](ferry::connection& which) {
      if ((*asked_again)++ == 0) {
        *first_left = which.unwritten_bytes();
        if (!which.tell_when_written(0)) *asked_again = 2;  // all is written already
      }
    };
    send_all();
    CHECK(pair.near_end->tell_when_written(most / 3));
    CHECK(pair.near_end->tell_when_written(most / 4));
    go_on();
    CHECK(comes_true([&] { return *asked_again == 2; }));
    CHECK(*first_left <= most / 4);
    CHECK(comes_true(written));
  }
  SUBCASE("nothing is unwritten at the end of a connection, and nothing is reported") {
    send_all();
    CHECK(pair.near_end->tell_when_written(0));
    pair.near_end->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    pair.near_end->close(ferry::make_error(ferry::errc::shutting_down, "now"));
    CHECK(pair.near_log->wait_closed());
    CHECK(pair.near_end->unwritten_bytes() == 0);
    CHECK_FALSE(pair.near_end->tell_when_written(0));
    go_on();
  }
}

/// For a transport with the default implementations: they promise nothing, and do no harm.
template <class Pair>
void check_without_flow() {
  Pair pair;
  pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message&) { from.pause_reading(); };
  for (std::uint64_t i = 0; i < 10; ++i) pair.near_end->send(make_message(i, 10));
  CHECK(pair.far_log->wait_for_count(10));
  CHECK(pair.near_end->unwritten_bytes() == 0);
  CHECK_FALSE(pair.near_end->tell_when_written(0));
  pair.far_end->resume_reading();
}

}  // namespace ferry::test_kit::detail
