// Metrics over HTTP: what scrapers get, and what peers that misbehave get.

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ferry/ferry.hpp>
#include <ferry/profiler.hpp>

#include "base/unique_fd.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "profiler/http_request.hpp"
#include "watchdog.hpp"

namespace server_test {

namespace profiler = ferry::profiler;
using namespace std::chrono_literals;
using ferry::errc;
using ferry::detail::http_request;
using profiler::metrics_server;
using profiler::metrics_server_options;

constexpr std::string_view get_metrics = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

// A connection to the server. Waits are bounded by the watchdogs of the tests.
class client {
 public:
  explicit client(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0);
  }
  // False: the server has closed.
  bool send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // All until the server closes.
  std::string read_all() {
    std::string all;
    std::array<char, 4096> chunk{};
    for (;;) {
      const ssize_t size = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
      if (size <= 0) return all;
      all.append(chunk.data(), static_cast<std::size_t>(size));
    }
  }
  void finish_sending() { ::shutdown(socket_.get(), SHUT_WR); }
  [[nodiscard]] int descriptor() const { return socket_.get(); }

 private:
  ferry::detail::unique_fd socket_;
};

std::string ask(std::uint16_t port, std::string_view request) {
  client one(port);
  one.send(request);
  return one.read_all();
}

std::string body_of(const std::string& answer) {
  const std::size_t end = answer.find("\r\n\r\n");
  REQUIRE(end != std::string::npos);
  return answer.substr(end + 4);
}

metrics_server_options anywhere() { return {.listen = "127.0.0.1:0"}; }

int triple(int x) { return 3 * x; }
int fails_to_triple(int) { throw std::runtime_error("too much"); }

// Every element of the page is closed, in the right order.
bool tags_match(std::string_view page) {
  std::vector<std::string_view> open;
  for (std::size_t at = page.find('<'); at != page.npos; at = page.find('<', at + 1)) {
    const std::string_view tag = page.substr(at + 1, page.find('>', at) - at - 1);
    const std::string_view name = tag.substr(0, tag.find_first_of(" \n"));
    if (name == "!DOCTYPE" || name == "meta") continue;
    if (!name.starts_with('/')) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name.substr(1)) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

http_request::progress read(std::string_view text) {
  http_request found;
  return http_request::read(text, found);
}

TEST_CASE("a scraper gets the metrics of a worker") {
  const ferry_test::watchdog limit("metrics over HTTP");
  ferry_test::cluster group(2);
  auto recorded = std::make_unique<profiler::metrics>(group[0]);
  const metrics_server server(*recorded, anywhere());
  CHECK(server.url() == "http://127.0.0.1:" + std::to_string(server.port()) + "/metrics");
  CHECK(group[0].rpc_sync<triple>("worker1", 3) == 9);
  const std::string answer = ask(server.port(), get_metrics);
  CHECK(answer.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(answer.find("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n") != std::string::npos);
  CHECK(answer.find("Connection: close\r\n") != std::string::npos);
  const std::string body = body_of(answer);
  CHECK(answer.find("Content-Length: " + std::to_string(body.size()) + "\r\n") != std::string::npos);
  CHECK(body.find("ferry_client_calls_total{worker=\"worker0\",method=") != std::string::npos);
  CHECK(body.ends_with('\n'));
  recorded.reset();  // the server goes on
  CHECK(body_of(ask(server.port(), get_metrics)).find("ferry_client_calls_total") != std::string::npos);
  CHECK(ask(server.port(), "GET /metrics?x=1 HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
}

TEST_CASE("a page in a browser whose site gives its name to loopback gets no metrics") {
  const ferry_test::watchdog limit("metrics over HTTP");
  ferry_test::cluster group(1);
  const profiler::metrics recorded(group[0]);
  const metrics_server server(recorded, anywhere());
  const auto answer_for = [&](std::uint16_t port, const std::string& host) {
    return ask(port, "GET /metrics HTTP/1.1\r\nHost:" + host + "\r\n\r\n").substr(9, 3);
  };
  const std::string own = std::to_string(server.port());
  for (const std::string& host : std::vector<std::string>{"localhost", " LocalHost:" + own, " 127.0.0.1:" + own,
                                                          " [::1]:" + own, "\tlocalhost. "}) {
    CAPTURE(host);
    CHECK(answer_for(server.port(), host) == "200");
  }
  for (const char* host :
       {" evil.example", " evil.example:80", " localhost.evil.example", " 127.0.0.1.evil.example", " x"}) {
    CAPTURE(host);
    CHECK(answer_for(server.port(), host) == "421");
  }
  const metrics_server open(recorded, {.listen = "127.0.0.1:0", .beyond_loopback = true});
  CHECK(answer_for(open.port(), " metrics.of.this.machine") == "200");
}

TEST_CASE("a browser gets a page for each question, and other programs the same as text") {
  const ferry_test::watchdog limit("pages over HTTP");
  ferry_test::cluster group(2);
  group[0].add_debug_info("test", {{"<script>&'\"rows\"", [] { return std::string("7"); }},
                                   {"\x1b[2Jbell\a", [] { return std::string("8"); }}});
  const profiler::metrics recorded(group[0]);
  const metrics_server server(recorded, anywhere());
  CHECK(group[0].rpc_sync<triple>("worker1", 3) == 9);
  CHECK_THROWS_AS((void)group[0].rpc_sync<fails_to_triple>("worker1", 3), std::runtime_error);
  const auto text_at = [&](const std::string& path) {
    const std::string answer =
        ask(server.port(), "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n");
    CHECK(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"));
    return body_of(answer);
  };
  const auto html_at = [&](const std::string& path) {
    const std::string answer = ask(server.port(), "GET " + path +
                                                      " HTTP/1.1\r\nHost: localhost\r\naccept: application/xhtml+xml, "
                                                      "text/html;q=0.9\r\n\r\n");
    CHECK(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"));
    CHECK(answer.find("Content-Security-Policy: default-src 'none'") != std::string::npos);
    CHECK(tags_match(body_of(answer)));
    return body_of(answer);
  };
  const std::string start = html_at("/");
  for (const auto& [path, expected] :
       std::vector<std::pair<std::string, std::string>>{{"/", "client"},
                                                        {"/slow", "triple"},
                                                        {"/failures", "remote_exception"},
                                                        {"/waits", "agent.queued_calls"},
                                                        {"/traffic", "worker1"},
                                                        {"/holdings", "num_users"}}) {
    CAPTURE(path);
    if (path != "/") CHECK(start.find("<a href=\"" + path + "\">") != std::string::npos);
    CHECK(html_at(path).find(expected) != std::string::npos);
    const std::string text = text_at(path);
    CHECK(text.find(expected) != std::string::npos);
    CHECK(text.find('<') == (path == "/holdings" ? text.find("<script>") : std::string::npos));
    for (const char c : text) CHECK((c == '\n' || static_cast<unsigned char>(c) >= 0x20));
  }
  const std::string held = html_at("/holdings");
  CHECK(held.find("<script>") == std::string::npos);
  CHECK(held.find("&lt;script&gt;&amp;&#39;&quot;rows&quot;</td><td>7</td>") != std::string::npos);
  CHECK(text_at("/holdings").find("?[2Jbell?") != std::string::npos);
  CHECK(body_of(ask(server.port(), "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n"))
            .starts_with("# HELP "));
  for (const char* path : {"/slow/", "/Slow", "/index.html", "/../slow"})
    CHECK(ask(server.port(), std::string("GET ") + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
              .starts_with("HTTP/1.1 404 "));
}

TEST_CASE("other paths, methods and bytes that are no request get an error, and the connection is closed") {
  const ferry_test::watchdog limit("errors over HTTP");
  std::atomic<int> made{0};
  const metrics_server server([&] { return "m " + std::to_string(++made) + "\n"; }, anywhere());
  const auto status = [&](std::string_view request) { return ask(server.port(), request).substr(0, 13); };
  CHECK(status("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == "HTTP/1.1 404 ");
  CHECK(status("GET /metrics/ HTTP/1.1\r\nHost: localhost\r\n\r\n") == "HTTP/1.1 404 ");
  for (const char* method : {"POST", "HEAD", "PUT", "DELETE", "OPTIONS"}) {
    const std::string answer =
        ask(server.port(), std::string(method) + " /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK(answer.starts_with("HTTP/1.1 405 "));
    CHECK(answer.find("Allow: GET\r\n") != std::string::npos);
  }
  for (const std::string_view bad :
       {std::string_view("garbage\r\n\r\n"), std::string_view("\n"), std::string_view("GET /metrics HTTP/2.0\r\n\r\n"),
        std::string_view("GET  /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        std::string_view("GET metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        std::string_view("GET /metrics HTTP/1.1\r\n\r\n"),
        std::string_view("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: y\r\n\r\n"),
        std::string_view("GET /metrics HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n"),
        std::string_view("GET /metrics HTTP/1.1\nHost: x\n\n"), std::string_view("\0\0\0\0\n", 5),
        std::string_view("\x16\x03\x01\x02\n")}) {
    CHECK(status(bad) == "HTTP/1.1 400 ");
  }
  CHECK(made == 0);
  CHECK(body_of(ask(server.port(), get_metrics)) == "m 1\n");
}

TEST_CASE("a request is read in whatever pieces it comes, up to 8 KiB") {
  const ferry_test::watchdog limit("pieces over HTTP");
  const metrics_server server([] { return std::string("m 1\n"); }, anywhere());
  client slow(server.port());
  for (const char c : get_metrics) CHECK(slow.send({&c, 1}));
  CHECK(body_of(slow.read_all()) == "m 1\n");
  const std::string head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ";
  const std::string end = "\r\n\r\n";
  const std::string most = head + std::string(http_request::most_bytes - head.size() - end.size(), 'x') + end;
  CHECK(body_of(ask(server.port(), most)) == "m 1\n");
  CHECK(ask(server.port(), head + "x" + most.substr(head.size())).starts_with("HTTP/1.1 400 "));
  client endless(server.port());
  (void)endless.send(head + std::string(100000, 'x'));  // it may be closed before all of it is sent
  const std::string answer = endless.read_all();
  CHECK((answer.empty() || answer.starts_with("HTTP/1.1 400 ")));
  CHECK(body_of(ask(server.port(), get_metrics)) == "m 1\n");
}

TEST_CASE("peers that send nothing, half a request, or never read are dropped") {
  const ferry_test::watchdog limit("silence over HTTP");
  const std::string much(std::size_t{32} << 20U, 'm');  // more than sockets hold
  metrics_server_options how = anywhere();
  how.time_limit = 500ms;
  {
    const metrics_server server([] { return std::string("m 1\n"); }, how);
    client silent(server.port());
    client half(server.port());
    CHECK(half.send("GET /metrics HT"));
    client hung_up(server.port());
    CHECK(hung_up.send("GET /metr"));
    hung_up.finish_sending();
    CHECK(silent.read_all().empty());
    CHECK(half.read_all().empty());
    CHECK(hung_up.read_all().empty());
  }
  how.max_connections = 1;
  std::atomic<int> made{0};
  const metrics_server server([&] { return ++made == 1 ? much : std::string("m 1\n"); }, how);
  client never_reads(server.port());
  CHECK(never_reads.send(get_metrics));
  while (made == 0) std::this_thread::yield();
  while (ask(server.port(), get_metrics).empty()) {  // until its place is free
  }
  CHECK(never_reads.read_all().size() < much.size());
  how.time_limit = 120s;
  const metrics_server patient([&] { return much; }, how);
  CHECK(body_of(ask(patient.port(), get_metrics)).size() == much.size());
}

TEST_CASE("of too many connections the oldest that has not asked gives way") {
  const ferry_test::watchdog limit("many connections over HTTP");
  metrics_server_options how = anywhere();
  how.max_connections = 2;
  how.time_limit = 60s;
  const metrics_server server([] { return std::string("m 1\n"); }, how);
  client first(server.port());
  client second(server.port());
  client third(server.port());
  CHECK(first.read_all().empty());
  CHECK(body_of(ask(server.port(), get_metrics)) == "m 1\n");
  CHECK(second.read_all().empty());
  CHECK(third.send(get_metrics));
  CHECK(body_of(third.read_all()) == "m 1\n");
  std::vector<std::unique_ptr<client>> flood;
  for (int i = 0; i != 50; ++i) flood.push_back(std::make_unique<client>(server.port()));
  CHECK(body_of(ask(server.port(), get_metrics)) == "m 1\n");
}

TEST_CASE("a connection beyond the limit is refused while all others wait for their text") {
  const ferry_test::watchdog limit("busy server over HTTP");
  ferry_test::gate door;
  metrics_server_options how = anywhere();
  how.max_connections = 2;
  how.time_limit = 60s;
  const metrics_server server(
      [&] {
        door.pass();
        return std::string("m 1\n");
      },
      how);
  client first(server.port());
  client second(server.port());
  CHECK(first.send(get_metrics));
  CHECK(second.send(get_metrics));
  door.await_arrivals(2);
  CHECK(ask(server.port(), get_metrics).empty());
  door.open();
  CHECK(body_of(first.read_all()) == "m 1\n");
  CHECK(body_of(second.read_all()) == "m 1\n");
}

TEST_CASE("a text that cannot be made is a 500") {
  const ferry_test::watchdog limit("a failing text over HTTP");
  const metrics_server server([]() -> std::string { throw std::runtime_error("no text"); }, anywhere());
  CHECK(ask(server.port(), get_metrics).starts_with("HTTP/1.1 500 "));
}

TEST_CASE("a server that ends closes its connections, and waits for a text that is being made") {
  const ferry_test::watchdog limit("the end of a server");
  ferry_test::gate door;
  std::atomic<bool> passed{false};
  auto server = std::make_unique<metrics_server>(
      [&] {
        door.pass();
        passed = true;
        return std::string("m 1\n");
      },
      anywhere());
  const std::uint16_t port = server->port();
  client silent(port);
  client asks(port);
  CHECK(asks.send(get_metrics));
  door.await_arrivals(1);
  std::thread opener([&] {
    (void)silent.read_all();  // closed before the text is there
    door.open();
  });
  server.reset();
  CHECK(passed);
  opener.join();
  CHECK(asks.read_all().empty());
  const metrics_server next([] { return std::string("m 2\n"); }, {.listen = "127.0.0.1:" + std::to_string(port)});
  CHECK(body_of(ask(port, get_metrics)) == "m 2\n");
  expect_error(errc::address_in_use, std::to_string(port), [&] {
    const metrics_server twice([] { return std::string(); }, {.listen = "127.0.0.1:" + std::to_string(port)});
  });
}

TEST_CASE("two workers of a process have one server, or one each") {
  const ferry_test::watchdog limit("two workers over HTTP");
  ferry_test::cluster group(2);
  const profiler::metrics zero(group[0]);
  const profiler::metrics one(group[1]);
  const metrics_server both(
      [&] {
        profiler::metrics_snapshot all = zero.read();
        return profiler::prometheus_text(all.merge(one.read())) + "# TYPE mine gauge\nmine 1\n";
      },
      anywhere());
  const metrics_server of_one(one, anywhere());
  CHECK(group[0].rpc_sync<triple>("worker1", 3) == 9);
  const std::string text = body_of(ask(both.port(), get_metrics));
  CHECK(text.find("ferry_client_calls_total{worker=\"worker0\"") != std::string::npos);
  CHECK(text.find("ferry_server_requests_total{worker=\"worker1\"") != std::string::npos);
  CHECK(text.ends_with("mine 1\n"));
  const std::string single = body_of(ask(of_one.port(), get_metrics));
  CHECK(single.find("worker=\"worker0\"") == std::string::npos);
  CHECK(single.find("ferry_server_requests_total{worker=\"worker1\"") != std::string::npos);
}

TEST_CASE("a server listens beyond the machine only where that is asked for") {
  const auto nothing = [] { return std::string(); };
  for (const char* open : {"0.0.0.0:0", "[::]:0", "192.0.2.1:9464"})
    expect_error(errc::authentication_required, "beyond_loopback",
                 [&] { const metrics_server none(nothing, {.listen = open}); });
  for (const char* bad :
       {"", "9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "::1:80", "example.org:80", ":80"})
    expect_error(errc::bad_address, "127.0.0.1:9464", [&] { const metrics_server none(nothing, {.listen = bad}); });
  expect_error(errc::invalid_argument, "max_connections",
               [&] { const metrics_server none(nothing, {.listen = "127.0.0.1:0", .max_connections = 0}); });
  expect_error(errc::invalid_argument, "time_limit",
               [&] { const metrics_server none(nothing, {.listen = "127.0.0.1:0", .time_limit = 0ms}); });
  const metrics_server local(nothing, {.listen = "localhost:0"});
  CHECK(local.url().starts_with("http://127.0.0.1:"));
  const metrics_server open(nothing, {.listen = "0.0.0.0:0", .beyond_loopback = true});
  CHECK(open.url().starts_with("http://0.0.0.0:"));
}

TEST_CASE("each beginning of a request is incomplete, and none of them is taken for one") {
  using progress = http_request::progress;
  const std::string whole = "GET /a?b=c HTTP/1.1\r\nHost: x:1\r\nAccept: */*;q=0.1\r\n\r\n";
  for (std::size_t size = 0; size != whole.size(); ++size) CHECK(read(whole.substr(0, size)) == progress::incomplete);
  http_request found;
  const std::string longer = whole + "more";
  CHECK(http_request::read(longer, found) == progress::complete);
  CHECK(found.method == "GET");
  CHECK(found.path == "/a");
  CHECK_FALSE(found.accepts_html);
  CHECK(read(std::string(http_request::most_bytes, 'x')) == progress::bad);
  CHECK(read(std::string(http_request::most_bytes - 1, 'x')) == progress::incomplete);
}

}  // namespace server_test
