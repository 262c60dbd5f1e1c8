// The store of a process without file descriptors: clients that have come go on, further ones are told why they cannot.

#include <ferry/store/tcp_store.hpp>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <ferry/test_kit/child_process.hpp>

#include "base/unique_fd.hpp"
#include "processes.hpp"
#include "raw_socket.hpp"
#include "store/tcp/tcp_protocol.hpp"
#include "tests/store/store_fixtures.hpp"

namespace descriptor_shortage_test {

using namespace store_test;
using ferry::tcp_store;
using ferry::tcp_store_server;

}  // namespace descriptor_shortage_test
namespace d = ferry::detail;

namespace descriptor_shortage_test {

namespace {

std::vector<d::unique_fd> take_all_descriptors() {
  std::vector<d::unique_fd> all;
  for (int fd = 0; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) all.emplace_back(fd);
  return all;
}

// The status in the server's hello.
std::string status_of_new_client(std::uint16_t port) {
  raw_socket client = raw_socket::connect(port);
  std::string hello(d::store_wire::magic);
  d::put(hello, d::store_wire::version);
  d::put(hello, std::uint16_t{0});
  d::put(hello, std::uint64_t{0});
  d::put(hello, std::uint64_t{1});
  client.send(hello);
  const std::string answer = client.receive(32);
  return answer.size() == 32 ? std::to_string(static_cast<unsigned char>(answer[6])) : "no answer";
}

// Says where it listens, then does what each line says.
int serve_short(const std::vector<std::string>&) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 128;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("setrlimit failed");
  const auto server = tcp_store_server::listen("127.0.0.1", 0);
  std::vector<d::unique_fd> taken;
  ferry_test::tell_parent(std::to_string(server->port()));
  for (;;) {
    const std::string order = ferry_test::ask_parent();
    if (order == "take") {
      taken = take_all_descriptors();
    } else if (order == "release") {
      taken.clear();
    } else {
      return 0;
    }
    ferry_test::tell_parent("done");
  }
}

const ferry_test::role serve_role("store short of descriptors", &serve_short);

}  // namespace

TEST_CASE("a store without descriptors serves its clients, refuses further ones in words, and takes them later") {
  ferry_test::child_process child({.role = "store short of descriptors"});
  const auto port = static_cast<std::uint16_t>(std::stoi(child.read_line()));
  const auto ask = [&](const std::string& order) {
    child.write_line(order);
    return child.read_line();
  };
  const auto open = [&](ferry::timeout limit) {
    return tcp_store({.host = "127.0.0.1", .port = port, .limit = limit});
  };
  tcp_store early = open(plenty);
  early.set("early", "1");
  REQUIRE(ask("take") == "done");
  std::string text;
  CHECK(kind_of([&] { open(2s); }, &text) == ferry::errc::store_unreachable);
  CHECK_MESSAGE(contains(text, "the server's process has run out of file descriptors"), text);
  // Many more than there are descriptors held back, and peers that say nothing do not keep them.
  std::vector<raw_socket> silent;
  for (int i = 0; i != 40; ++i) {
    if (i % 2 == 0) silent.push_back(raw_socket::connect(port));
    const std::string answer = status_of_new_client(port);
    REQUIRE_MESSAGE(answer == "7", "the ", i, "th got ", answer);
  }
  CHECK(early.get("early", plenty) == "1");

  REQUIRE(ask("release") == "done");
  CHECK(open(plenty).get("early", plenty) == "1");
  child.write_line("end");
  CHECK(child.wait() == 0);
}

}  // namespace descriptor_shortage_test
