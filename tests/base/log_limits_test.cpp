// Bounds on what the library writes to the log, whatever peers and standard error do.

#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ferry/base/log.hpp>

#include "base/peer_log.hpp"
#include "base/unique_fd.hpp"
#include "captured_log.hpp"

namespace log_limits_test {

using ferry::log_level;
using ferry::detail::log_about;
using ferry::detail::unique_fd;

namespace {

// Standard error is this descriptor while the object lives.
class redirected {
 public:
  explicit redirected(int to) : before_(::dup(STDERR_FILENO)) { ::dup2(to, STDERR_FILENO); }
  redirected(const redirected&) = delete;
  redirected& operator=(const redirected&) = delete;
  ~redirected() { ::dup2(before_.get(), STDERR_FILENO); }

 private:
  const unique_fd before_;
};

std::string take(int from) {
  std::string all;
  std::array<char, 4096> some{};
  for (ssize_t got = 0; (got = ::read(from, some.data(), some.size())) > 0;)
    all.append(some.data(), static_cast<std::size_t>(got));
  return all;
}

void fill(int with) {
  const int flags = ::fcntl(with, F_GETFL);
  ::fcntl(with, F_SETFL, flags | O_NONBLOCK);
  while (::write(with, "x", 1) == 1) {
  }
  ::fcntl(with, F_SETFL, flags);
}

}  // namespace

TEST_CASE("of a long line that a peer causes the beginning is logged, with how much is left out") {
  using ferry::detail::shortened;
  CHECK(shortened("short", 5) == "short");
  CHECK(shortened("longer", 4) == "long... (2 more bytes)");
  CHECK(shortened("\xe2\x82\xac\xe2\x82\xac", 4) == "\xe2\x82\xac... (3 more bytes)");
  const ferry_test::captured_log log;
  log_about("a peer", log_level::warning, [] { return std::string(1'000'000, 'x'); });
  CHECK(log.has("x... (995904 more bytes)"));
}

TEST_CASE("at most 20 lines about a peer are logged in five seconds, and the others are counted") {
  ferry_test::captured_log log;
  int made = 0;
  for (int i = 0; i != 1000; ++i) {
    log_about("one", log_level::warning, [&] {
      ++made;
      return std::string("about one");
    });
  }
  log_about("another", log_level::warning, [] { return std::string("about another"); });
  CHECK(made == 20);
  CHECK(log.size() == 21);
  CHECK(log.has("about another"));
  ferry::detail::report_left_out_lines();
  CHECK(log.has("980 more lines about one were left out"));
  CHECK_FALSE(log.has("more lines about another"));
}

TEST_CASE("no period of five seconds has more than 20 lines about a peer, wherever it begins") {
  using ferry::detail::line_limits;
  line_limits limits;
  std::vector<line_limits::count> due;
  const line_limits::time_point start = std::chrono::steady_clock::now();
  std::vector<std::chrono::milliseconds> logged;  // lines and counts
  std::size_t counted = 0;
  std::size_t lines = 0;
  std::size_t asked = 0;
  const auto ask = [&](std::chrono::milliseconds at) {
    ++asked;
    const bool admitted = limits.admit("one", start + at, due);
    for (const auto& each : due) {
      CHECK(each.peer == "one");
      counted += each.lines;
      logged.push_back(at);
    }
    due.clear();
    if (!admitted) return;
    logged.push_back(at);
    ++lines;
  };
  using namespace std::chrono_literals;
  SUBCASE("few, then many at the end of the period and at the begin of the next") {
    ask(0ms);
    for (int i = 0; i != 100; ++i) ask(4990ms);
    CHECK(lines == 20);
    for (int i = 0; i != 100; ++i) ask(5010ms);
    CHECK(lines == 20 + 1);  // in the place of the first
    for (int i = 0; i != 100; ++i) ask(10100ms);
    CHECK(lines == 20 + 1 + 19);  // and the count
    CHECK(counted == 81 + 99);
  }
  SUBCASE("a line every 10 ms for a minute") {
    for (auto at = 0ms; at != 60s; at += 10ms) ask(at);
  }
  SUBCASE("bursts") {
    for (auto at = 0ms; at != 60s; at += 1200ms) {
      for (int i = 0; i != 15; ++i) ask(at);
    }
  }
  for (std::size_t i = line_limits::most; i < logged.size(); ++i) {
    CHECK(logged[i] - logged[i - line_limits::most] >= line_limits::period);
  }
  for (const auto& each : limits.take_all()) counted += each.lines;
  CHECK(lines + counted == asked);  // nothing is left out uncounted
}

TEST_CASE("lines below the log level do not use up the limit of their peer") {
  ferry_test::captured_log log;
  for (int i = 0; i != 100; ++i) log_about(ferry::worker_id{3}, log_level::debug, [] { return std::string("quiet"); });
  log_about(ferry::worker_id{3}, log_level::warning, [] { return std::string("loud"); });
  CHECK(log.has("loud"));
}

TEST_CASE("many peers share a limit in the end") {
  ferry_test::captured_log log;
  for (int i = 0; i != 2000; ++i)
    log_about("peer " + std::to_string(i), log_level::warning, [] { return std::string("line"); });
  CHECK(log.size() <= 256 + 20);
}

TEST_CASE("a log line does not wait for a full standard error, and is counted") {
  for (const bool by_socket : {false, true}) {
    CAPTURE(by_socket);
    std::array<int, 2> ends{};
    if (by_socket) {
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    } else {
      REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    }
    const unique_fd reader(ends[0]);
    const unique_fd writer(ends[1]);
    const auto level = ferry::get_log_level();
    ferry::set_log_level(log_level::warning);
    std::string text;
    {
      const redirected to(writer.get());
      const int flags = ::fcntl(writer.get(), F_GETFL);
      ferry::log(log_level::warning, "before");
      fill(writer.get());
      for (int i = 0; i != 3; ++i) ferry::log(log_level::warning, "lost");
      CHECK(::fcntl(writer.get(), F_GETFL) == flags);  // they belong to the program
      ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
      text = take(reader.get());
      ferry::log(log_level::warning, "after");
      text += take(reader.get());
    }
    ferry::set_log_level(level);
    CHECK(text.find("warning: before\n") != std::string::npos);
    CHECK(text.find("lost\n") == std::string::npos);
    CHECK(text.find("warning: 3 lines were lost: standard error did not take them\n") != std::string::npos);
    CHECK(text.find("warning: after\n") != std::string::npos);
  }
}

}  // namespace log_limits_test
