// Messages that are held back until their thread sends the next one: connection::send_with_next().

#include "transport/streams/stream_connection.hpp"

#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <ferry/base/error.hpp>

#include "transport/reactor/held_output.hpp"
#include "transport/shm/shared_rings.hpp"

namespace held_message_test {

namespace {

using namespace ferry;
using detail::held_output;

outgoing_message request(const std::string& text, std::uint8_t flags = 0) {
  outgoing_message message;
  message.header.kind = frame_kind::request;
  message.header.flags = frame_no_deadline | flags;
  message.bytes.append(text.data(), text.size());
  message.finish();
  return message;
}

outgoing_message cancellation() {
  outgoing_message message;
  message.header.kind = frame_kind::cancel;
  message.finish();
  return message;
}

struct receiver : connection_receiver {
  void on_message(connection&, inbound_message&&) noexcept override {}
  void on_closed(connection&, std::exception_ptr) noexcept override {}
  [[nodiscard]] std::size_t expected_messages() const noexcept override { return 0; }
};

// Reports no event, and looks at what is held back only when the test says so.
struct still_reactor : reactor {
  std::vector<std::shared_ptr<deferred_io>> noted;
  bool watched = false;

  void post(work*) noexcept override {}
  watch_id watch(int, std::shared_ptr<descriptor_handler>, bool readable, bool) override {
    watched = readable;
    return watch_id{1};
  }
  void rewatch(watch_id, bool readable, bool) noexcept override { watched = readable; }
  void unwatch(watch_id) noexcept override {}
  timer_id start_timer(deadline, work*) override { return timer_id{1}; }
  bool cancel_timer(timer_id) noexcept override { return true; }
  void watch_later(std::shared_ptr<deferred_io> item, std::chrono::milliseconds) noexcept override {
    noted.push_back(std::move(item));
  }
  void tick() {
    std::erase_if(noted, [](const auto& each) { return each->resume_watching(false); });
  }
};

// As a thread that reads the connection does, which is not watched afterwards.
void read_once(connection& from) {
  struct at_once final : drive_condition {
    [[nodiscard]] bool done() const noexcept override { return true; }
  } condition;
  REQUIRE(from.drive(condition, deadline()));
}

// A connection to a socket on which each write is a packet.
struct line {
  std::shared_ptr<still_reactor> loop = std::make_shared<still_reactor>();
  std::shared_ptr<connection> from;
  int to = -1;

  line() {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    from = detail::make_stream_connection(*loop, ends[0], "test", "test", {});
    to = ends[1];
    from->start(std::make_shared<receiver>());
  }
  ~line() {
    from->close(make_error(errc::shutting_down, "end"));
    loop->noted.clear();
    ::close(to);
  }
  // The last letters of the messages of the next write; empty: there is none.
  std::string next_write() const {
    std::array<char, 4096> bytes{};
    const ssize_t count = ::recv(to, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0) {
      REQUIRE(errno == EAGAIN);
      return {};
    }
    std::string texts;
    const std::size_t each = request("x").bytes.size();
    for (std::size_t at = each; at <= static_cast<std::size_t>(count); at += each) texts += bytes.at(at - 1);
    return texts;
  }
  std::string all_writes() const {
    std::string texts;
    for (std::string more; !(more = next_write()).empty();) texts += (texts.empty() ? "" : " ") + more;
    return texts;
  }
  void stop_watching() const {
    read_once(*from);
    REQUIRE_FALSE(loop->watched);
  }
  // Until one is held back, which is written. A busy machine may need more than a few.
  void learn() {
    for (int i = 0; i != 10'000; ++i) {
      const bool held = from->send_with_next(request("l"));
      from->send(request("l"));
      (void)all_writes();
      if (held) return;
    }
    FAIL("messages are followed at once, and are not held back");
  }
  // Sends one that is held back. What was learned is lost where the machine was busy in between, and learned again: also at the end
  // of a thread, where one that is held back is written at once, and so not followed.
  void hold(const std::string& text) {
    for (int i = 0; i != 10'000; ++i) {
      if (from->send_with_next(request(text))) return;
      from->send(request("l"));
      (void)all_writes();
    }
    FAIL("a message was not held back");
  }
};

}  // namespace

TEST_CASE("a message waits for the next one of its thread only where the last ones were followed at once") {
  line there;
  CHECK_FALSE(there.from->send_with_next(request("a")));
  CHECK(there.next_write() == "a");
  there.from->send(request("b"));
  CHECK(there.next_write() == "b");
  there.learn();
  there.hold("c");
  CHECK(there.all_writes().empty());
  there.from->send(request("d"));
  CHECK(there.all_writes() == "cd");
}

TEST_CASE("of two such messages in a row neither waits") {
  line there;
  there.learn();
  there.hold("a");
  CHECK_FALSE(there.from->send_with_next(request("b")));
  CHECK(there.all_writes() == "ab");
  CHECK_FALSE(there.from->send_with_next(request("c")));
  CHECK(there.all_writes() == "c");
}

TEST_CASE("the end of a wait for the next message is that of its thread's activity, or a tick") {
  line there;
  there.learn();

  there.hold("a");
  held_output::release();
  CHECK(there.all_writes() == "a");
  CHECK_FALSE(there.from->send_with_next(request("b")));  // it is learnt anew
  CHECK(there.all_writes() == "b");
  there.from->send(request("c"));

  there.learn();
  there.hold("d");
  there.loop->tick();
  CHECK(there.all_writes() == "d");
  held_output::release();
  CHECK(there.all_writes().empty());

  line elsewhere;
  there.learn();
  there.hold("e");
  elsewhere.from->send(request("f"));
  CHECK(there.all_writes() == "e");
  CHECK(elsewhere.all_writes() == "f");

  there.learn();
  std::thread([&] { there.hold("g"); }).join();
  CHECK(there.all_writes().ends_with("g"));

  there.learn();
  there.hold("h");
  there.from->close(make_error(errc::shutting_down, "end"));
  CHECK(there.all_writes() == "h");
}

TEST_CASE("another thread's message takes one along that is held back") {
  line there;
  there.learn();
  there.hold("a");
  std::thread([&] { there.from->send(request("b")); }).join();
  CHECK(there.all_writes() == "ab");
  held_output::release();
  CHECK(there.all_writes().empty());
}

TEST_CASE("a one-way message and a cancellation take one along, too") {
  line there;
  there.learn();
  there.hold("a");
  there.from->send_soon(request("b", frame_one_way));
  CHECK(there.all_writes() == "ab");

  there.learn();
  there.hold("c");
  there.from->send(cancellation());
  CHECK(there.all_writes().starts_with("c"));
}

TEST_CASE("a connection is watched once a message is written that no other one has followed") {
  line there;
  there.learn();
  there.stop_watching();
  there.hold("a");
  CHECK_FALSE(there.loop->watched);
  held_output::release();
  CHECK(there.loop->watched);
  CHECK(there.all_writes() == "a");
}

TEST_CASE("a connection is watched when its thread goes on, also if a cancellation took the message along") {
  line there;
  there.learn();
  there.stop_watching();
  there.hold("a");
  there.from->send(cancellation());
  CHECK(there.all_writes().starts_with("a"));
  held_output::release();
  CHECK(there.loop->watched);
}

namespace {

// A connection over rings whose other end reads them when the test says so.
struct ring_line {
  std::shared_ptr<still_reactor> loop = std::make_shared<still_reactor>();
  std::unique_ptr<detail::shared_rings> far;
  std::shared_ptr<connection> from;
  int to = -1;

  ring_line() {
    auto [near, descriptor] = detail::shared_rings::create(64 * 1024);
    far = detail::shared_rings::adopt(descriptor, 64 * 1024);
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    from = detail::make_stream_connection(*loop, ends[0], "test", "test", {}, {}, 0, std::move(near));
    to = ends[1];
    from->start(std::make_shared<receiver>());
  }
  ~ring_line() {
    from->close(make_error(errc::shutting_down, "end"));
    loop->noted.clear();
    ::close(to);
  }
  // The last letters of the messages that are in the ring.
  [[nodiscard]] std::string written() const {
    std::array<char, 4096> bytes{};
    const iovec all{bytes.data(), bytes.size()};
    bool wake = false;
    const std::size_t count = far->in().read({&all, 1}, wake);
    std::string texts;
    const std::size_t each = request("x").bytes.size();
    for (std::size_t at = each; at <= count; at += each) texts += bytes.at(at - 1);
    return texts;
  }
  [[nodiscard]] bool watched() const { return far->out().reader_sleeps(); }
  void stop_watching() const {
    read_once(*from);
    REQUIRE_FALSE(watched());
  }
  // One that the sender expects to be followed.
  void send_expecting_next(const std::string& text) const {
    for (int i = 0; i != 10'000; ++i) {
      if (from->send_with_next(request(text))) return;
      from->send(request("l"));
      (void)written();
    }
    FAIL("no message is expected to be followed");
  }
};

}  // namespace

TEST_CASE(
    "over a ring whose reader is awake such a message is written at once, and the connection watched once no other one "
    "follows") {
  ring_line there;
  there.send_expecting_next("a");
  CHECK(there.written() == "a");
  there.from->send(request("b"));
  CHECK(there.written() == "b");
  there.stop_watching();
  held_output::release();
  CHECK_FALSE(there.watched());  // the sender of the second one sees to that

  there.send_expecting_next("c");
  CHECK_FALSE(there.watched());
  held_output::release();
  CHECK(there.watched());
  CHECK(there.written() == "c");
  CHECK_FALSE(there.from->send_with_next(request("d")));  // it is learnt anew

  there.from->send(request("e"));
  (void)there.written();
  there.stop_watching();
  there.send_expecting_next("f");
  CHECK_FALSE(there.watched());
  there.loop->tick();
  CHECK(there.watched());
}

TEST_CASE("over a ring whose reader sleeps such a message waits, so that one wake-up is enough") {
  ring_line there;
  there.send_expecting_next("a");
  there.from->send(request("b"));
  CHECK(there.written() == "ab");
  CHECK_FALSE(there.far->in().announce_sleep());
  there.send_expecting_next("c");
  CHECK(there.written().empty());
  there.from->send(request("d"));
  CHECK(there.written() == "cd");
}

TEST_CASE("what ends later than that of its thread which holds messages back may still send them") {
  line first;
  line second;
  struct last_words {
    line* to = nullptr;
    ~last_words() {
      if (to) to->hold("b");
    }
  };
  first.learn();
  second.learn();
  std::thread([&] {
    thread_local last_words late;  // before anything is held back
    late.to = &second;
    first.hold("a");
  }).join();
  CHECK(first.all_writes().ends_with("a"));
  CHECK(second.all_writes().ends_with("b"));
}

TEST_CASE("a connection that is gone before its held-back message is due") {
  auto there = std::make_unique<line>();
  there->learn();
  there->hold("a");
  there.reset();
  held_output::release();
}

}  // namespace held_message_test
