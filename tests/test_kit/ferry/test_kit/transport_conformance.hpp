#pragma once

// Part of the test kit: the suite that every transport must pass. For a transport of your own, describe it and run the
// suite in a test case:
//
//   struct my_transport_under_test {
//     using tag = my_transport;                                        // transport_traits<my_transport> exists
//     static constexpr bool crosses_processes = true;                  // other processes can connect
//     static std::string missing() { return {}; }                      // why this machine cannot run it, if so
//     static ferry::transport_options options() { return {}; }
//     static std::shared_ptr<ferry::reactor> reactor();                // a reactor of its own; or leave it out
//     static constexpr bool bounds_flow = false;                       // without pause_reading() and unwritten_bytes(); or leave it out
//   };
//   TEST_CASE("my_transport conforms") { ferry::test_kit::transport_conformance<my_transport_under_test>(); }

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <ostream>  // for doctest's printing of an errc
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/test_kit/child_process.hpp>
#include <ferry/test_kit/transport_flow.hpp>
#include <ferry/test_kit/transport_kit.hpp>
#include <ferry/transport/address.hpp>

namespace ferry::test_kit {

/// The reactor that a transport is tested over: that of its description, or the library's.
template <class Under>
std::shared_ptr<ferry::reactor> reactor_under_test() {
  if constexpr (requires { Under::reactor(); }) {
    return Under::reactor();
  } else {
    return test_reactor();
  }
}

/// One worker "server" that listens and one connection to it.
template <class Under>
struct linked_pair {
  std::shared_ptr<ferry::reactor> loop = reactor_under_test<Under>();
  std::shared_ptr<ferry::transport> over = ferry::transport_traits<typename Under::tag>::open(*loop);
  std::shared_ptr<accepting_worker> server = std::make_shared<accepting_worker>("server");
  std::string address;
  std::shared_ptr<ferry::connection> near_end;
  std::shared_ptr<recorder> near_log = std::make_shared<recorder>();
  std::shared_ptr<ferry::connection> far_end;
  std::shared_ptr<recorder> far_log;

  explicit linked_pair(bool link = true) {
    address = over->listen("group", "server", "", Under::options(), server).front();
    if (link) connect_now();
  }
  ~linked_pair() {
    over->unlisten("group", "server");
    for (const auto& end : {near_end, far_end}) {
      if (end) end->close(ferry::make_error(ferry::errc::shutting_down, "the test is over"));
    }
    if (near_end) near_log->wait_closed();
    if (far_end) far_log->wait_closed();
  }
  linked_pair(const linked_pair&) = delete;
  linked_pair& operator=(const linked_pair&) = delete;

  void connect_now() {
    auto result = connect(*over, address, hello_to("server"), Under::options());
    INFO(failure_of(result).second);
    REQUIRE(result.opened);
    near_end = std::move(result.opened);
    near_end->start(near_log);
    std::tie(far_end, far_log) = server->accepted();
  }
};

namespace detail {

template <class Under>
void check_handshake() {
  linked_pair<Under> pair(false);
  SUBCASE("reports the identity of the peer to each end") {
    auto result = connect(*pair.over, pair.address, hello_to("server"), Under::options());
    INFO(failure_of(result).second);
    REQUIRE(result.opened);
    CHECK(result.peer.name == "server");
    CHECK((result.peer.id == ferry::worker_id{7}));
    CHECK((result.peer.incarnation == ferry::incarnation_id{99}));
    CHECK((result.peer.features & ~feature_authenticated) == 0x34);
    const auto [far_end, far_log] = pair.server->accepted();
    const auto seen = pair.server->greeting();
    CHECK(seen.name == "caller");
    CHECK((seen.id == ferry::worker_id{3}));
    CHECK((seen.incarnation == ferry::incarnation_id{12345}));
    CHECK((seen.features & ~feature_authenticated) == 0x1234);
    CHECK(seen.group == "group");
    CHECK(result.opened->transport_name() == ferry::transport_traits<typename Under::tag>::name);
    CHECK_FALSE(result.opened->description().empty());
    CHECK(pair.over->understands(pair.address));
    pair.near_end = result.opened;
    pair.near_end->start(pair.near_log);
    std::tie(pair.far_end, pair.far_log) = pair.server->accepted();
  }
  SUBCASE("refuses an unknown worker, by name") {
    const auto [kind, text] = failure_of(connect(*pair.over, pair.address, hello_to("unknown")));
    CHECK((kind == ferry::errc::unknown_worker || kind == ferry::errc::handshake_failed));
    CHECK_MESSAGE(text.find("'unknown'") != text.npos, text);
    CHECK_MESSAGE(text.find(pair.address) != text.npos, text);
  }
  SUBCASE("refuses another group, by name") {
    const auto [kind, text] = failure_of(connect(*pair.over, pair.address, hello_to("server", "other_group")));
    CHECK((kind == ferry::errc::unknown_worker || kind == ferry::errc::handshake_failed));
    CHECK_MESSAGE(text.find("'other_group'") != text.npos, text);
  }
  SUBCASE("reports why the worker refuses") {
    pair.server->on_greeting = [](const ferry::hello& from) {
      ferry::throw_error(ferry::errc::fenced, "worker '" + from.name + "' was declared dead");
    };
    const auto [kind, text] = failure_of(connect(*pair.over, pair.address, hello_to("server")));
    CHECK(kind == ferry::errc::fenced);
    CHECK_MESSAGE(text.find("worker 'caller' was declared dead") != text.npos, text);
    CHECK(pair.server->accepted_count() == 0);
  }
  SUBCASE("refuses an address of another kind") {
    const auto [kind, text] = failure_of(connect(*pair.over, "carrier-pigeon:7", hello_to("server")));
    CHECK(kind == ferry::errc::bad_address);
    CHECK_MESSAGE(text.find("carrier-pigeon:7") != text.npos, text);
    CHECK_FALSE(pair.over->understands("carrier-pigeon:7"));
  }
  SUBCASE("a worker that no longer listens is not found, and may listen again") {
    pair.over->unlisten("group", "server");
    CHECK(connect(*pair.over, pair.address, hello_to("server")).error);
    pair.address = pair.over->listen("group", "server", "", Under::options(), pair.server).front();
    pair.connect_now();
  }
  SUBCASE("two workers of a process share the address, two of one name do not") {
    const auto second = std::make_shared<accepting_worker>("second");
    CHECK(pair.over->listen("group", "second", "", Under::options(), second).front() == pair.address);
    auto result = connect(*pair.over, pair.address, hello_to("second"));
    REQUIRE(result.opened);
    CHECK(result.peer.name == "second");
    (void)second->accepted();
    try {
      pair.over->listen("group", "server", "", Under::options(), pair.server);
      FAIL_CHECK("a second worker of that name was accepted");
    } catch (const ferry::error& error) {
      CHECK(error.kind() == ferry::errc::duplicate_name);
    }
    pair.over->unlisten("group", "second");
    pair.connect_now();
    const auto [far_end, far_log] = second->accepted();
    far_end->close(ferry::make_error(ferry::errc::shutting_down, "the test is over"));
    CHECK(far_log->wait_closed());
  }
  SUBCASE("unlisten waits for the acceptor") {
    std::promise<void> entered, leave;
    auto may_leave = leave.get_future();
    std::atomic<bool> inside{true};
    pair.server->on_greeting = [&](const ferry::hello&) {
      entered.set_value();
      may_leave.wait();
      inside = false;
    };
    auto connecting =
        std::async(std::launch::async, [&] { return connect(*pair.over, pair.address, hello_to("server")); });
    entered.get_future().wait();
    auto gone = std::async(std::launch::async, [&] {
      pair.over->unlisten("group", "server");
      return !inside;
    });
    leave.set_value();
    CHECK(gone.get());
    const auto accepted = pair.server->accepted_count();
    auto result = connecting.get();  // refused, closed as soon as it was open, or accepted just before
    if (result.opened) {
      pair.near_end = result.opened;
      pair.near_end->start(pair.near_log);
      if (accepted == 0) CHECK(pair.near_log->wait_closed());
    }
    CHECK(pair.server->accepted_count() == accepted);
    if (accepted != 0) std::tie(pair.far_end, pair.far_log) = pair.server->accepted();
  }
}

template <class Under>
void check_messages() {
  linked_pair<Under> pair;
  SUBCASE("arrive in order, both ways") {
    constexpr std::uint64_t count = 20'000;
    std::thread other([&] {
      for (std::uint64_t i = 0; i < count; ++i) pair.far_end->send(make_message(i, i % 50));
    });
    for (std::uint64_t i = 0; i < count; ++i) pair.near_end->send(make_message(i, i % 70));
    other.join();
    const auto at_far = pair.far_log->take(count);
    const auto at_near = pair.near_log->take(count);
    REQUIRE(at_far.size() == count);
    REQUIRE(at_near.size() == count);
    std::size_t wrong = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!is_message(at_far[i], i, i % 70) || !is_message(at_near[i], i, i % 50)) ++wrong;
    }
    CHECK(wrong == 0);
  }
  SUBCASE("of every size arrive whole") {
    std::vector<std::size_t> sizes{0,    1,     63,    64,    65,    66,    67,    68,      69,     70,
                                   4095, 65471, 65472, 65473, 65535, 65536, 65537, 1 << 20, 5 << 20};
    for (std::size_t i = 0; i < sizes.size(); ++i) pair.near_end->send(make_message(i, sizes[i]));
    const auto arrived = pair.far_log->take(sizes.size());
    REQUIRE(arrived.size() == sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) CHECK_MESSAGE(is_message(arrived[i], i, sizes[i]), sizes[i]);
  }
  SUBCASE("carry tensors, as values, into aligned buffers of their own") {
    const std::vector<std::int64_t> sizes{0, 1, 64, 4096, 65535, 65536, 1 << 20, 20 << 20};
    std::vector<ferry::tensor> all;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto single = make_tensor(i, sizes[i]);
      all.push_back(single);
      pair.near_end->send(make_message(i, 10, {single}));
    }
    pair.near_end->send(make_message(100, 100'000, all));
    pair.near_end->send(make_message(101, 3));
    const auto arrived = pair.far_log->take(sizes.size() + 2);
    REQUIRE(arrived.size() == sizes.size() + 2);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      INFO(sizes[i]);
      CHECK(is_message(arrived[i], i, 10));
      REQUIRE(arrived[i].tensors.size() == 1);
      CHECK(is_tensor(arrived[i].tensors[0], i, sizes[i]));
      CHECK(reinterpret_cast<std::uintptr_t>(arrived[i].tensors[0].data()) % 64 == 0);
      CHECK_FALSE(arrived[i].tensors[0].storage().same_as(all[i].storage()));
    }
    const auto& together = arrived[sizes.size()];
    CHECK(is_message(together, 100, 100'000));
    REQUIRE(together.tensors.size() == sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(is_tensor(together.tensors[i], i, sizes[i]));
    CHECK(is_message(arrived.back(), 101, 3));
  }
  SUBCASE("carry views as their visible elements in the order of their strides") {
    const auto base = ferry::arange(24).reshape({4, 6});
    const auto column = base.slice(1, 0, 6, 2);
    const auto turned = base.transpose(0, 1);
    const auto stretched = ferry::arange(3).unsqueeze(0).expand({1000, 3});
    pair.near_end->send(make_message(1, 0, {column, turned, stretched}));
    base.fill_(-1);  // after send() the message is under way or copied: tensors in flight belong to the sender alone
    const auto arrived = pair.far_log->take(1);
    REQUIRE(arrived.size() == 1);
    REQUIRE(arrived[0].tensors.size() == 3);
    CHECK((arrived[0].tensors[0].shape() == column.shape()));
    CHECK((arrived[0].tensors[1].strides() == turned.strides()));
    CHECK((arrived[0].tensors[2].shape() == stretched.shape()));
    CHECK(ferry::equal(arrived[0].tensors[2], stretched));
  }
  SUBCASE("carry extension records") {
    ferry::outgoing_message message;
    message.header.kind = ferry::frame_kind::control;
    const auto content = make_message(1, 33).bytes;
    message.bytes.append("payload", 7);
    message.add_extension(7, false, content.bytes());
    message.add_extension(9, true, {});
    message.tensors = {make_tensor(3, 100)};
    message.finish();
    pair.near_end->send(std::move(message));
    const auto arrived = pair.far_log->take(1);
    REQUIRE(arrived.size() == 1);
    CHECK(arrived[0].header.kind == ferry::frame_kind::control);
    auto records = arrived[0].extensions;
    ferry::extension_record record;
    REQUIRE(ferry::next_extension(records, record));
    CHECK(record.type == 7);
    CHECK_FALSE(record.critical);
    CHECK(record.content.size() == content.size());
    CHECK(std::memcmp(record.content.data(), content.data(), content.size()) == 0);
    REQUIRE(ferry::next_extension(records, record));
    CHECK(record.type == 9);
    CHECK(record.critical);
    CHECK(record.content.empty());
    CHECK_FALSE(ferry::next_extension(records, record));
    CHECK(std::string(reinterpret_cast<const char*>(arrived[0].payload.data()), arrived[0].payload.size()) ==
          "payload");
    REQUIRE(arrived[0].tensors.size() == 1);
    CHECK(is_tensor(arrived[0].tensors[0], 3, 100));
  }
  SUBCASE("of several threads do not mix") {
    constexpr std::uint64_t threads = 4, per_thread = 3000;
    std::vector<std::thread> senders;
    for (std::uint64_t t = 0; t < threads; ++t) {
      senders.emplace_back([&, t] {
        for (std::uint64_t i = 0; i < per_thread; ++i) {
          const auto id = t * per_thread + i;
          std::vector<ferry::tensor> tensors;
          if (i % 100 == 0) tensors.push_back(make_tensor(id, 100'000));
          pair.near_end->send(make_message(id, (i * 37) % 2000, std::move(tensors)));
        }
      });
    }
    for (auto& sender : senders) sender.join();
    const auto arrived = pair.far_log->take(threads * per_thread);
    REQUIRE(arrived.size() == threads * per_thread);
    std::vector<std::uint64_t> next(threads, 0);
    std::size_t wrong = 0;
    for (const auto& message : arrived) {
      const auto t = message.header.call_id / per_thread;
      const auto i = message.header.call_id % per_thread;
      if (t >= threads || next[t]++ != i || !is_message(message, message.header.call_id, (i * 37) % 2000)) ++wrong;
      if (i % 100 == 0 &&
          (message.tensors.size() != 1 || !is_tensor(message.tensors[0], message.header.call_id, 100'000))) {
        ++wrong;
      }
    }
    CHECK(wrong == 0);
  }
}

/// drive()'s condition in tests.
struct flag_condition final : ferry::drive_condition {
  std::atomic<bool> flag{false};
  [[nodiscard]] bool done() const noexcept override { return flag.load(); }
};

template <class Under>
void check_driving() {
  linked_pair<Under> pair(false);
  SUBCASE("a driving thread gets its answers") {
    pair.server->prepare = [](recorder& log) {
      log.forget_messages();
      log.on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
        from.send(make_message(message.header.call_id, message.payload.size()));
      };
    };
    std::atomic<std::uint64_t> answered{0};
    pair.near_log->forget_messages();
    flag_condition got;
    pair.near_log->on_arrival = [&](ferry::connection& from, ferry::inbound_message& message) {
      answered = message.header.call_id;
      got.flag = true;
      from.interrupt_drive();
    };
    pair.connect_now();
    for (std::uint64_t i = 1; i <= 2000; ++i) {
      got.flag = false;
      pair.near_end->send(make_message(i, 64));
      // If driving is not possible, or another thread reads, the answer arrives all the same.
      if (!pair.near_end->drive(got, ferry::deadline::after(patience))) REQUIRE(pair.near_log->wait_for_count(i));
      if (!got.done()) REQUIRE(pair.near_log->wait_for_count(i));
      REQUIRE(answered == i);
    }
  }
  SUBCASE("what no thread waits for arrives after the last drive, and so does the end of the connection") {
    pair.connect_now();
    flag_condition got;
    pair.near_log->expected = 0;
    pair.near_log->on_arrival = [&](ferry::connection& from, ferry::inbound_message&) {
      got.flag = true;
      from.interrupt_drive();
    };
    for (std::uint64_t i = 1; i <= 20; ++i) {
      got.flag = false;
      pair.far_end->send(make_message(i, 64));
      (void)pair.near_end->drive(got, ferry::deadline::after(patience));
      pair.far_end->send(make_message(i, 64));
      REQUIRE(pair.near_log->wait_for_count(2 * i));
    }
    pair.far_end->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    CHECK(pair.near_log->wait_closed());
  }
  SUBCASE("threads that send, drive, interrupt and close at any moment lose and double nothing") {
    constexpr std::uint64_t senders = 2, per_sender = 400, burst = 7;
    pair.server->prepare = [](recorder& log) {
      log.on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
        from.send(make_message(message.header.call_id, message.payload.size()));
      };
    };
    for (std::uint64_t round = 0; round != 20; ++round) {
      auto result = connect(*pair.over, pair.address, hello_to("server"), Under::options());
      REQUIRE(result.opened);
      const auto near_end = std::move(result.opened);
      const auto near_log = std::make_shared<recorder>();
      std::array<std::atomic<std::uint64_t>, senders> answered{};
      near_log->on_arrival = [&](ferry::connection& from, ferry::inbound_message& message) {
        answered.at(message.header.call_id / per_sender) = message.header.call_id % per_sender + 1;
        from.interrupt_drive();
      };
      near_end->start(near_log);
      const auto [far_end, far_log] = pair.server->accepted(round);
      std::atomic<std::uint64_t> running{senders};
      std::vector<std::thread> threads;
      for (std::uint64_t own = 0; own != senders; ++own) {
        threads.emplace_back([&, own, near = near_end] {
          struct progress final : ferry::drive_condition {
            std::atomic<std::uint64_t>* answered = nullptr;
            std::uint64_t wanted = 0;
            [[nodiscard]] bool done() const noexcept override { return *answered >= wanted; }
          } all;
          all.answered = &answered.at(own);
          for (std::uint64_t i = 0; i != per_sender && near_log->times_closed() == 0; ++i) {
            near->send(make_message(own * per_sender + i, i % 90));
            if (i % burst != burst - 1 && i + 1 != per_sender) continue;
            all.wanted = i + 1;
            while (!all.done() && near_log->times_closed() == 0) {
              if (!near->drive(all, ferry::deadline::after(patience))) std::this_thread::yield();
            }
          }
          --running;
        });
      }
      // Even rounds end in the middle, by either end, odd ones when all is answered.
      const std::uint64_t close_at = round % 2 == 0 ? 20 * round : senders * per_sender;
      threads.emplace_back([&, near = near_end, far = far_end] {
        while (running != 0 && answered[0] + answered[1] < close_at) {
          near->interrupt_drive();
          std::this_thread::yield();
        }
        (round % 4 == 0 ? near : far)->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
      });
      for (auto& each : threads) each.join();
      CHECK(near_log->wait_closed());
      CHECK(far_log->wait_closed());
      std::size_t wrong = 0;
      for (const auto& log : {far_log, near_log}) {
        CHECK(log->times_closed() == 1);
        CHECK_FALSE(log->saw_late_message());
        std::array<std::uint64_t, senders> next{};
        for (const auto& message : log->take(0)) {
          const std::uint64_t own = message.header.call_id / per_sender;
          const std::uint64_t i = message.header.call_id % per_sender;
          if (own >= senders || next.at(own)++ != i || !is_message(message, message.header.call_id, i % 90)) ++wrong;
        }
        if (round % 2 != 0 && next[0] + next[1] != senders * per_sender) ++wrong;
      }
      CHECK(wrong == 0);
    }
  }
  SUBCASE("driving ends when it is interrupted, at the deadline and when the connection ends") {
    pair.connect_now();
    flag_condition never;
    (void)pair.near_end->drive(never, ferry::deadline::after(std::chrono::milliseconds(1)));
    flag_condition soon;
    std::thread other([&] {
      soon.flag = true;
      pair.near_end->interrupt_drive();
    });
    (void)pair.near_end->drive(soon, ferry::deadline::after(patience));
    other.join();
    std::thread closer([&] { pair.far_end->close(ferry::make_error(ferry::errc::shutting_down, "bye")); });
    (void)pair.near_end->drive(never, ferry::deadline::after(patience));
    closer.join();
    CHECK(pair.near_log->wait_closed());
    CHECK(pair.near_log->times_closed() == 1);
  }
}

template <class Under>
void check_closing() {
  linked_pair<Under> pair;
  const auto both_ended = [&] {
    CHECK(pair.near_log->wait_closed());
    CHECK(pair.far_log->wait_closed());
    CHECK(pair.near_log->times_closed() == 1);
    CHECK(pair.far_log->times_closed() == 1);
    CHECK_FALSE(pair.near_log->saw_late_message());
    CHECK_FALSE(pair.far_log->saw_late_message());
  };
  const auto close_after_sending = [&](ferry::connection& closer, recorder& own_log, recorder& other_log) {
    for (std::uint64_t i = 0; i < 500; ++i) closer.send(make_message(i, 1000));
    closer.close(ferry::make_error(ferry::errc::shutting_down, "enough"));
    both_ended();
    closer.close(ferry::make_error(ferry::errc::shutting_down, "again"));
    both_ended();
    CHECK(other_log.count() == 500);
    CHECK(own_log.reason() == "shutting_down: enough");
    CHECK_MESSAGE(other_log.reason().find("connection_lost") == 0, other_log.reason());
  };
  SUBCASE("by the connecting end is reported once to both, after what was sent before") {
    close_after_sending(*pair.near_end, *pair.near_log, *pair.far_log);
  }
  SUBCASE("by the accepting end is reported once to both, after what was sent before") {
    close_after_sending(*pair.far_end, *pair.far_log, *pair.near_log);
  }
  SUBCASE("makes later sends harmless") {
    pair.far_end->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    both_ended();
    for (std::uint64_t i = 0; i < 100; ++i) {
      pair.near_end->send(make_message(i, 10, {make_tensor(i, 1000)}));
      pair.far_end->send(make_message(i, 10));
    }
    pair.near_end->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    both_ended();
  }
  SUBCASE("by both ends at once under traffic") {
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (const auto& end : {pair.near_end, pair.far_end}) {
      threads.emplace_back([&stop, end] {
        for (std::uint64_t i = 0; !stop; ++i) end->send(make_message(i, 100, {make_tensor(i, 100)}));
      });
    }
    CHECK(pair.near_log->wait_for_count(50));
    CHECK(pair.far_log->wait_for_count(50));
    for (const auto& end : {pair.near_end, pair.far_end}) {
      threads.emplace_back([end] { end->close(ferry::make_error(ferry::errc::shutting_down, "bye")); });
    }
    both_ended();
    stop = true;
    for (auto& thread : threads) thread.join();
  }
  SUBCASE("with much still queued for a slow peer") {
    std::promise<void> let_go;
    auto wait = let_go.get_future().share();
    std::atomic<bool> first{true};
    pair.far_log->on_arrival = [&, wait](ferry::connection&, ferry::inbound_message&) {
      if (first.exchange(false)) wait.wait();
    };
    const auto big = make_tensor(1, 1 << 20);
    for (std::uint64_t i = 0; i < 30; ++i) pair.near_end->send(make_message(i, 10, {big}));
    pair.near_end->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    let_go.set_value();
    both_ended();
    CHECK(pair.far_log->count() == 30);
  }
  SUBCASE("twice, for a peer that does not read") {
    std::promise<void> let_go;
    auto wait = let_go.get_future().share();
    pair.far_log->on_arrival = [wait, loop = pair.loop](ferry::connection&, ferry::inbound_message&) {
      loop->begin_blocking();  // the reactor may have one thread
      wait.wait();
      loop->end_blocking();
    };
    const auto big = make_tensor(1, 1 << 20);
    for (std::uint64_t i = 0; i < 30; ++i) pair.near_end->send(make_message(i, 10, {big}));
    pair.near_end->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    pair.near_end->close(ferry::make_error(ferry::errc::shutting_down, "now"));
    CHECK(pair.near_log->wait_closed());
    let_go.set_value();
    both_ended();
  }
  SUBCASE("from inside a delivery") {
    pair.far_log->on_arrival = [](ferry::connection& from, ferry::inbound_message&) {
      from.close(ferry::make_error(ferry::errc::protocol_error, "not acceptable"));
    };
    for (std::uint64_t i = 0; i < 10; ++i) pair.near_end->send(make_message(i, 10));
    both_ended();
  }
}

template <class Under>
void check_ownership() {
  SUBCASE("the receiver is released after on_closed") {
    std::weak_ptr<recorder> near_log, far_log;
    {
      linked_pair<Under> pair;
      near_log = pair.near_log;
      far_log = pair.far_log;
    }
    const auto until = std::chrono::steady_clock::now() + patience;
    while ((!near_log.expired() || !far_log.expired()) && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    CHECK(near_log.expired());
    CHECK(far_log.expired());
  }
  SUBCASE("a receiver that owns its connection is destroyed, with the connection, after on_closed") {
    struct owner : recorder {
      std::shared_ptr<ferry::connection> own;
    };
    std::weak_ptr<owner> receiver;
    std::weak_ptr<ferry::connection> owned;
    linked_pair<Under> pair(false);
    {
      auto result = connect(*pair.over, pair.address, hello_to("server"));
      REQUIRE(result.opened);
      const auto both = std::make_shared<owner>();
      both->own = result.opened;
      receiver = both;
      owned = result.opened;
      result.opened->start(both);
    }
    std::tie(pair.far_end, pair.far_log) = pair.server->accepted();
    pair.far_end->close(ferry::make_error(ferry::errc::connection_lost, "the test is over"));
    const auto until = std::chrono::steady_clock::now() + patience;
    while ((!receiver.expired() || !owned.expired()) && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    CHECK(receiver.expired());
    CHECK(owned.expired());
  }
  SUBCASE("a connection that is never started may be dropped, which closes it") {
    linked_pair<Under> pair(false);
    {
      auto result = connect(*pair.over, pair.address, hello_to("server"));
      REQUIRE(result.opened);
      result.opened->send(make_message(1, 10));
    }
    std::tie(pair.far_end, pair.far_log) = pair.server->accepted();
    CHECK(pair.far_log->wait_closed());
    CHECK(pair.far_log->count() <= 1);
  }
  SUBCASE("many connections exchange messages at once") {
    linked_pair<Under> pair(false);
    pair.server->prepare = [](recorder& log) {
      log.forget_messages();
      log.on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
        from.send(make_message(message.header.call_id + 1, message.payload.size()));
      };
    };
    constexpr std::size_t count = 12, exchanges = 300;
    std::vector<std::pair<std::shared_ptr<ferry::connection>, std::shared_ptr<recorder>>> clients;
    for (std::size_t i = 0; i != count; ++i) {
      auto result = connect(*pair.over, pair.address, hello_to("server"));
      REQUIRE(result.opened);
      const auto log = std::make_shared<recorder>();
      log->forget_messages();
      log->on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
        if (message.header.call_id != exchanges) from.send(make_message(message.header.call_id, 100));
      };
      result.opened->start(log);
      clients.emplace_back(std::move(result.opened), log);
    }
    for (const auto& [end, log] : clients) end->send(make_message(0, 100));
    for (const auto& [end, log] : clients) CHECK(log->wait_for_count(exchanges));
    for (const auto& [end, log] : clients) end->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    for (std::size_t i = 0; i != count; ++i) {
      CHECK(clients[i].second->wait_closed());
      CHECK(clients[i].second->count() == exchanges);
      CHECK(pair.server->accepted(i).second->wait_closed());
    }
  }
  SUBCASE("many connections open and close") {
    linked_pair<Under> pair(false);
    pair.server->prepare = [](recorder& log) { log.forget_messages(); };
    constexpr std::size_t count = 200;
    for (std::size_t i = 0; i < count; ++i) {
      auto result = connect(*pair.over, pair.address, hello_to("server"));
      REQUIRE(result.opened);
      const auto log = std::make_shared<recorder>();
      result.opened->start(log);
      result.opened->send(make_message(i, 100));
      result.opened->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
      CHECK(log->wait_closed());
      const auto [far_end, far_log] = pair.server->accepted(i);
      CHECK(far_log->wait_closed());
      CHECK(far_log->count() == 1);
    }
  }
}

template <class Under>
constexpr bool bounds_flow() {
  if constexpr (requires { Under::bounds_flow; }) return Under::bounds_flow;
  return true;
}

constexpr const char* peer_role = "ferry transport peer";

// A worker "echo" in a process of its own, until its first connection has ended.
template <class Under>
void be_peer() {
  const auto loop = reactor_under_test<Under>();
  const auto over = ferry::transport_traits<typename Under::tag>::open(*loop);
  const auto echo = std::make_shared<accepting_worker>("echo");
  echo->prepare = [](recorder& log) {
    log.forget_messages();
    log.on_arrival = [](ferry::connection& from, ferry::inbound_message& message) {
      from.send(make_message(message.header.call_id, message.payload.size(), std::move(message.tensors)));
    };
  };
  child_process::tell_parent(over->listen("group", "echo", "", Under::options(), echo).front());
  const auto [far_end, log] = echo->accepted();
  CHECK(log->wait_closed());
  over->unlisten("group", "echo");
}

template <class Under>
void check_processes() {
  if (!Under::crosses_processes) return;
  const auto loop = reactor_under_test<Under>();
  const auto over = ferry::transport_traits<typename Under::tag>::open(*loop);
  child_process child = child_process::in_role(peer_role, {});
  const std::string address = child.read_line();
  auto result = connect(*over, address, hello_to("echo"));
  INFO(failure_of(result).second);
  REQUIRE(result.opened);
  const auto log = std::make_shared<recorder>();
  result.opened->start(log);
  SUBCASE("in another process answer") {
    for (std::uint64_t i = 0; i < 200; ++i) result.opened->send(make_message(i, i * 10, {make_tensor(i, 1000)}));
    result.opened->send(make_message(200, 10, {make_tensor(200, 8 << 20)}));
    const auto arrived = log->take(201);
    REQUIRE(arrived.size() == 201);
    for (std::uint64_t i = 0; i < 200; ++i) {
      CHECK(is_message(arrived[i], i, i * 10));
      CHECK(is_tensor(arrived[i].tensors.at(0), i, 1000));
    }
    CHECK(is_tensor(arrived[200].tensors.at(0), 200, 8 << 20));
    result.opened->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    CHECK(child.wait() == 0);
  }
  SUBCASE("that are killed are detected") {
    result.opened->send(make_message(1, 10));
    CHECK(log->wait_for_count(1));
    child.kill(SIGKILL);
    CHECK(log->wait_closed());
    CHECK_MESSAGE(log->reason().find("connection_lost") == 0, log->reason());
    CHECK(child.wait() == 128 + SIGKILL);
    CHECK(connect(*over, address, hello_to("echo")).error);
  }
  CHECK(log->wait_closed());
  CHECK(log->times_closed() == 1);
}

}  // namespace detail

/// Runs everything as subcases of the current test case, which must do nothing else: it is also run in other processes,
/// as their peer.
template <class Under>
void transport_conformance() {
  if (child_process::current_role() == detail::peer_role) return detail::be_peer<Under>();
  if (const auto why = Under::missing(); !why.empty()) {
    MESSAGE("skipped: " << why);
    return;
  }
  SUBCASE("handshake") { detail::check_handshake<Under>(); }
  SUBCASE("messages") { detail::check_messages<Under>(); }
  SUBCASE("driving") { detail::check_driving<Under>(); }
  SUBCASE("closing") { detail::check_closing<Under>(); }
  SUBCASE("ownership") { detail::check_ownership<Under>(); }
  if constexpr (detail::bounds_flow<Under>()) {
    SUBCASE("pausing") { detail::check_pausing<linked_pair<Under>>(); }
    SUBCASE("unwritten bytes") { detail::check_unwritten<linked_pair<Under>>(); }
  } else {
    SUBCASE("no pausing") { detail::check_without_flow<linked_pair<Under>>(); }
  }
  SUBCASE("peers") { detail::check_processes<Under>(); }
}

}  // namespace ferry::test_kit
