// Each fault of the proxy does what it says, seen by the two ends of a connection through it.

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <ferry/base/error.hpp>
#include <ferry/test_kit/fault_proxy.hpp>

#include "ports.hpp"
#include "watchdog.hpp"

using namespace std::chrono_literals;
using ferry::fault_proxy;
using ferry::link_fault;
using ferry::link_faults;
using ferry::proxy_admission;
using ferry::proxy_direction;

namespace fault_proxy_test {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

/// A blocking socket; what takes longer than half a minute fails with EAGAIN.
class socket_end {
 public:
  explicit socket_end(int descriptor) : descriptor_(descriptor) {
    if (descriptor < 0) fail("socket");
    const timeval limit{30, 0};
    ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  socket_end(socket_end&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  socket_end(const socket_end&) = delete;
  socket_end& operator=(socket_end&&) = delete;
  ~socket_end() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  void write(const std::string& bytes) const {
    std::size_t sent = 0;
    while (sent != bytes.size()) {
      const ssize_t count = ::send(descriptor_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count < 0) fail("send");
      sent += static_cast<std::size_t>(count);
    }
  }
  /// Up to `most` bytes, less only at the end of the connection.
  [[nodiscard]] std::string read(std::size_t most) const {
    std::string bytes(most, '\0');
    std::size_t got = 0;
    while (got != most) {
      const ssize_t count = ::recv(descriptor_, bytes.data() + got, most - got, 0);
      if (count < 0) fail("recv");
      if (count == 0) break;
      got += static_cast<std::size_t>(count);
    }
    bytes.resize(got);
    return bytes;
  }
  [[nodiscard]] bool has_bytes() const {
    char byte = 0;
    return ::recv(descriptor_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  }
  /// Whether it ends with a reset; reads and forgets what comes before.
  [[nodiscard]] bool is_reset() const {
    std::array<char, 4096> bytes{};
    for (;;) {
      const ssize_t count = ::recv(descriptor_, bytes.data(), bytes.size(), 0);
      if (count <= 0) return count < 0 && errno == ECONNRESET;
    }
  }
  void end_output() const { ::shutdown(descriptor_, SHUT_WR); }
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

sockaddr_in at(std::uint16_t port) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(port);
  return where;
}

/// Throws std::system_error.
socket_end connect_to(std::uint16_t port) {
  socket_end result(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in where = at(port);
  if (::connect(result.descriptor(), reinterpret_cast<const sockaddr*>(&where), sizeof where) != 0) fail("connect");
  return result;
}

/// What is behind the proxy.
class server {
 public:
  server() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in where = at(0);
    socklen_t size = sizeof where;
    if (::bind(listener_.descriptor(), reinterpret_cast<const sockaddr*>(&where), size) != 0) fail("bind");
    if (::listen(listener_.descriptor(), 16) != 0) fail("listen");
    ::getsockname(listener_.descriptor(), reinterpret_cast<sockaddr*>(&where), &size);
    port_ = ntohs(where.sin_port);
  }
  [[nodiscard]] socket_end accept() const {
    return socket_end(::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  [[nodiscard]] bool has_connection() const {
    pollfd one{listener_.descriptor(), POLLIN, 0};
    return ::poll(&one, 1, 0) == 1;
  }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  socket_end listener_;
  std::uint16_t port_ = 0;
};

/// A connection through a proxy of its own.
struct line {
  explicit line(std::uint64_t seed = 7) : proxy(behind.address(), 0, seed) {}

  const ferry_test::watchdog dog{"a fault proxy"};
  server behind;
  fault_proxy proxy;
  socket_end client{connect_to(proxy.port())};
  socket_end target{behind.accept()};
};

std::string text_of(std::size_t size) {
  std::string result(size, '\0');
  for (std::size_t i = 0; i != size; ++i) result[i] = static_cast<char>('a' + (i * 7 + i / 251) % 26);
  return result;
}

// One piece that gets the faults owed: TCP keeps the bytes of one small write together on one machine.
std::string one_piece(line& through, const std::string& sent) {
  through.client.write(sent);
  through.client.end_output();
  return through.target.read(4 * sent.size());
}

template <class Condition>
void wait_for(const Condition& condition) {
  while (!condition()) std::this_thread::sleep_for(1ms);
}

}  // namespace fault_proxy_test

using namespace fault_proxy_test;

TEST_CASE("fault proxy: without faults it forwards every byte and the end of each direction") {
  line through;
  const std::string sent = text_of(3'000'001);
  auto writer = std::async(std::launch::async, [&] {
    through.client.write(sent);
    through.client.end_output();
  });
  CHECK(through.target.read(sent.size() + 1) == sent);
  writer.get();
  // The other direction still works.
  through.target.write("answer");
  through.target.end_output();
  CHECK(through.client.read(100) == "answer");
  wait_for([&] { return through.proxy.open_connections() == 0; });
  const auto counters = through.proxy.counters();
  CHECK(counters.connections == 1);
  CHECK(counters.bytes == sent.size() + 6);
  CHECK(counters.lost == 0);
  CHECK(counters.reset == 0);
  CHECK(counters.delayed == 0);
}

TEST_CASE("fault proxy: a slow reader slows the writer down") {
  line through;
  std::size_t sent = 0;
  const std::string block = text_of(65536);
  const auto full = [&] {
    pollfd one{through.client.descriptor(), POLLOUT, 0};
    return ::poll(&one, 1, 500) == 0;
  };
  while (!full() && sent < (std::size_t{1} << 28U)) {
    const ssize_t count = ::send(through.client.descriptor(), block.data(), block.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
  CHECK(sent < (std::size_t{1} << 28U));
  CHECK(through.target.read(sent).size() == sent);
}

TEST_CASE("fault proxy: delay") {
  line through;
  through.proxy.set_faults({.delay = 60ms, .jitter = 20ms}, proxy_direction::to_target);
  const auto begin = std::chrono::steady_clock::now();
  through.client.write("late");
  CHECK(through.target.read(4) == "late");
  CHECK(std::chrono::steady_clock::now() - begin >= 60ms);
  CHECK(through.proxy.counters().delayed == 1);
  through.target.write("at once");
  CHECK(through.client.read(7) == "at once");
  CHECK(through.proxy.counters().delayed == 1);
}

TEST_CASE("fault proxy: pieces that are delayed by chance keep their order") {
  line through;
  through.proxy.set_faults({.jitter = 2ms, .split = 1, .piece = 5});
  const std::string sent = text_of(2000);
  through.client.write(sent);
  CHECK(through.target.read(sent.size()) == sent);
}

TEST_CASE("fault proxy: a limited rate") {
  line through;
  through.proxy.set_faults({.bytes_per_second = 100'000});
  const std::string sent = text_of(20'000);
  const auto begin = std::chrono::steady_clock::now();
  through.client.write(sent);
  CHECK(through.target.read(sent.size()) == sent);
  // All but the last 10 ms of them are waited for.
  CHECK(std::chrono::steady_clock::now() - begin >= 180ms);
}

TEST_CASE("fault proxy: split") {
  line through;
  through.proxy.set_faults({.split = 1, .piece = 1}, proxy_direction::to_target);
  const std::string sent = text_of(500);
  through.client.write(sent);
  CHECK(through.target.read(sent.size()) == sent);
  CHECK(through.proxy.counters().split == sent.size());
  CHECK(through.proxy.counters().pieces == sent.size());
}

TEST_CASE("fault proxy: close loses the rest, and both ends see an orderly end") {
  line through;
  through.proxy.inject(link_fault::close, proxy_direction::to_target);
  const std::string sent = text_of(5000);
  through.client.write(sent);
  const std::string got = through.target.read(sent.size());
  CHECK(got.size() < sent.size());
  CHECK(sent.starts_with(got));
  CHECK(through.client.read(1).empty());
  CHECK(through.proxy.counters().closed == 1);
  // What comes after is lost, too.
  through.client.write("more");
  wait_for([&] { return through.proxy.counters().lost == sent.size() - got.size() + 4; });
}

TEST_CASE("fault proxy: reset") {
  line through;
  through.proxy.inject(link_fault::reset, proxy_direction::to_client);
  through.target.write(text_of(100));
  CHECK(through.client.is_reset());
  CHECK(through.target.is_reset());
  CHECK(through.proxy.counters().reset == 1);
  CHECK(through.proxy.counters().lost == 100);
  CHECK(through.proxy.open_connections() == 0);
}

TEST_CASE("fault proxy: reset_all") {
  line through;
  const socket_end second = connect_to(through.proxy.port());
  const socket_end second_target = through.behind.accept();
  wait_for([&] { return through.proxy.counters().connections == 2; });
  through.proxy.reset_all();
  CHECK(through.client.is_reset());
  CHECK(through.target.is_reset());
  CHECK(second.is_reset());
  CHECK(second_target.is_reset());
  CHECK(through.proxy.counters().reset == 2);
  // New ones are forwarded.
  const socket_end third = connect_to(through.proxy.port());
  const socket_end third_target = through.behind.accept();
  third.write("x");
  CHECK(third_target.read(1) == "x");
}

TEST_CASE("fault proxy: a stall holds one direction until it is healed, and loses nothing") {
  line through;
  through.proxy.cut(link_fault::stall, proxy_direction::to_target);
  through.client.write("held");
  through.target.write("answer");
  CHECK(through.client.read(6) == "answer");
  CHECK_FALSE(through.target.has_bytes());
  CHECK(through.proxy.counters().stalled == 1);
  through.proxy.heal();
  CHECK(through.target.read(4) == "held");
  CHECK(through.proxy.counters().lost == 0);
  CHECK(through.proxy.counters().reset == 0);
  // By a piece: it is held, too.
  through.proxy.inject(link_fault::stall, proxy_direction::to_client);
  through.target.write("again");
  wait_for([&] { return through.proxy.counters().stalled == 2; });
  CHECK_FALSE(through.client.has_bytes());
  through.proxy.heal();
  CHECK(through.client.read(5) == "again");
}

TEST_CASE("fault proxy: a stalled end does not learn that the other one is gone") {
  line through;
  through.proxy.cut(link_fault::stall);
  through.client.write("unread");
  { const socket_end gone = std::move(through.client); }
  CHECK_FALSE(through.target.has_bytes());
  CHECK(through.proxy.open_connections() == 1);
  through.proxy.heal();
  CHECK(through.target.read(100) == "unread");
}

TEST_CASE("fault proxy: a black hole takes and loses everything, and is reset when it is healed") {
  line through;
  through.proxy.cut(link_fault::black_hole, proxy_direction::to_target);
  const std::string sent = text_of(std::size_t{20} << 20U);  // more than the buffers on the way hold
  through.client.write(sent);
  wait_for([&] { return through.proxy.counters().lost == sent.size(); });
  CHECK_FALSE(through.target.has_bytes());
  through.target.write("still works");
  CHECK(through.client.read(11) == "still works");
  // New connections meet it, too.
  const socket_end second = connect_to(through.proxy.port());
  const socket_end second_target = through.behind.accept();
  second.write("lost");
  wait_for([&] { return through.proxy.counters().lost == sent.size() + 4; });
  CHECK(through.proxy.counters().black_holes == 2);
  through.proxy.heal();
  CHECK(through.client.is_reset());
  CHECK(through.target.is_reset());
  CHECK(second.is_reset());
  CHECK(second_target.is_reset());
}

TEST_CASE("fault proxy: duplicate") {
  line through;
  through.proxy.inject(link_fault::duplicate);
  const std::string sent = text_of(1000);
  const std::string got = one_piece(through, sent);
  CHECK(through.proxy.counters().duplicated == 1);
  REQUIRE(got.size() > sent.size());
  const std::size_t run = got.size() - sent.size();
  CHECK(run <= link_faults().run);
  bool found = false;
  for (std::size_t i = 0; i + run <= sent.size() && !found; ++i) {
    found = got == std::string(sent).insert(i + run, sent.substr(i, run));
  }
  CHECK(found);
}

TEST_CASE("fault proxy: reorder") {
  line through;
  through.proxy.inject(link_fault::reorder);
  const std::string sent = text_of(1000);
  std::string got = one_piece(through, sent);
  CHECK(through.proxy.counters().reordered == 1);
  CHECK(got != sent);
  const auto first = std::mismatch(got.begin(), got.end(), sent.begin(), sent.end());
  CHECK(got.end() - first.first >= 2);
  std::sort(got.begin(), got.end());
  std::string sorted = sent;
  std::sort(sorted.begin(), sorted.end());
  CHECK(got == sorted);
}

TEST_CASE("fault proxy: flip, the same bits for the same seed") {
  const std::string sent = text_of(1000);
  const auto flipped = [&](std::uint64_t seed) {
    line through(seed);
    CHECK(through.proxy.seed() == seed);
    through.proxy.inject(link_fault::flip);
    const std::string got = one_piece(through, sent);
    CHECK(through.proxy.counters().flipped == 1);
    CHECK(got.size() == sent.size());
    return got;
  };
  const std::string got = flipped(7);
  std::size_t different = 0;
  for (std::size_t i = 0; i != std::min(sent.size(), got.size()); ++i) different += got[i] != sent[i] ? 1 : 0;
  CHECK(different == 1);
  CHECK(flipped(7) == got);
  CHECK(flipped(8) != got);
}

TEST_CASE("fault proxy: a connection with damaged bytes is reset when it is healed, others go on") {
  line through;
  const socket_end second = connect_to(through.proxy.port());
  const socket_end second_target = through.behind.accept();
  through.proxy.inject(link_fault::flip);
  through.client.write("damaged");
  CHECK(through.target.read(7) != "damaged");
  through.proxy.heal();
  CHECK(through.client.is_reset());
  second.write("whole");
  CHECK(second_target.read(5) == "whole");
}

TEST_CASE("fault proxy: by chance about as often as asked") {
  line through;
  through.proxy.set_faults({.split = 1, .piece = 1, .flip = 0.25});
  const std::string sent = text_of(4000);
  through.client.write(sent);
  CHECK(through.target.read(sent.size()) != sent);
  const auto flipped = through.proxy.counters().flipped;
  CHECK(flipped > 700);
  CHECK(flipped < 1300);
  CHECK(through.proxy.faults(proxy_direction::to_client).flip == 0.25);
}

TEST_CASE("fault proxy: new connections that are dropped, ignored, refused") {
  line through;
  through.proxy.set_admission(proxy_admission::drop);
  CHECK(connect_to(through.proxy.port()).is_reset());
  CHECK(through.proxy.counters().dropped == 1);

  through.proxy.set_admission(proxy_admission::ignore);
  const socket_end ignored = connect_to(through.proxy.port());
  ignored.write("lost");
  wait_for([&] { return through.proxy.counters().lost == 4; });
  CHECK_FALSE(through.behind.has_connection());

  through.proxy.set_admission(proxy_admission::refuse);
  CHECK_THROWS_AS(connect_to(through.proxy.port()), std::system_error);

  // Those that were open are not concerned.
  through.client.write("open");
  CHECK(through.target.read(4) == "open");

  through.proxy.heal();
  CHECK(ignored.is_reset());
  const socket_end healed = connect_to(through.proxy.port());
  const socket_end healed_target = through.behind.accept();
  healed.write("healed");
  CHECK(healed_target.read(6) == "healed");

  through.proxy.set_admission(proxy_admission::drop, 0);
  const socket_end forwarded = connect_to(through.proxy.port());
  (void)through.behind.accept();
}

TEST_CASE("fault proxy: a target that does not listen resets the connection, another one may take its place") {
  const ferry_test::watchdog dog("a fault proxy");
  fault_proxy proxy("127.0.0.1:" + std::to_string(ferry_test::free_port()));
  CHECK(connect_to(proxy.port()).is_reset());
  CHECK(proxy.counters().unreachable == 1);
  CHECK(proxy.counters().connections == 0);
  const server behind;
  proxy.set_target(behind.address());
  const socket_end client = connect_to(proxy.port());
  (void)behind.accept();
  CHECK(proxy.address() == "127.0.0.1:" + std::to_string(proxy.port()));
}

TEST_CASE("fault proxy: its destruction resets what is open") {
  const ferry_test::watchdog dog("a fault proxy");
  const server behind;
  auto proxy = std::make_unique<fault_proxy>(behind.address());
  const socket_end client = connect_to(proxy->port());
  const socket_end target = behind.accept();
  proxy.reset();
  CHECK(client.is_reset());
  CHECK(target.is_reset());
}

TEST_CASE("fault proxy: settings that make no sense are refused") {
  const auto kind_of = [](const auto& attempt) {
    try {
      attempt();
    } catch (const ferry::error& e) {
      return e.kind();
    }
    return ferry::errc{};
  };
  fault_proxy proxy("[::1]:9");
  using ferry::errc;
  CHECK(kind_of([&] { proxy.set_faults({.flip = 1.5}); }) == errc::invalid_argument);
  CHECK(kind_of([&] { proxy.set_faults({.delay = -1ms}); }) == errc::invalid_argument);
  CHECK(kind_of([&] { proxy.set_faults({.piece = 0}); }) == errc::invalid_argument);
  CHECK(kind_of([&] { proxy.set_admission(proxy_admission::drop, -1); }) == errc::invalid_argument);
  CHECK(kind_of([&] { proxy.cut(link_fault::flip); }) == errc::invalid_argument);
  CHECK(kind_of([&] { proxy.set_target("nowhere"); }) == errc::invalid_argument);
  CHECK(kind_of([] { const fault_proxy bad("127.0.0.1:"); }) == errc::invalid_argument);
  CHECK(kind_of([&] { const fault_proxy taken("127.0.0.1:9", proxy.port()); }) == errc::address_in_use);
}
