// The memory of a store server stays near its limit under every kind of load.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <ferry/store/tcp_store.hpp>

#include <ferry/test_kit/store_conformance.hpp>

#include "processes.hpp"
#include "raw_socket.hpp"
#include "sanitizers.hpp"

namespace store_memory_test {

using namespace store_test;

namespace {

constexpr std::size_t slack = std::size_t{12} << 20U;  // the allocator, and buffers of the one message being worked on

// FERRY_STORE_MEMORY_MIB: another limit than these small ones, for a run by hand.
std::size_t limit_in_mebibytes(std::size_t usual) {
  const char* wanted = std::getenv("FERRY_STORE_MEMORY_MIB");
  return wanted ? std::stoull(wanted) : usual;
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t whole = 0;
  std::size_t resident = 0;
  file >> whole >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// Tells its port, and then, for every line, how many bytes its resident memory has grown by.
const ferry_test::role loaded_server("store server under load", [](const std::vector<std::string>& arguments) {
  const auto server = ferry::tcp_store_server::listen(
      "127.0.0.1", 0, {.max_value_bytes = 4 << 20, .max_total_bytes = std::stoull(arguments.at(0))});
  const std::size_t before = resident_bytes();
  ferry_test::tell_parent(std::to_string(server->port()));
  while (ferry_test::ask_parent() == "grown") ferry_test::tell_parent(std::to_string(resident_bytes() - before));
  return 0;
});

std::string number(std::uint64_t value, int bytes) {
  std::string out;
  for (; bytes > 0; --bytes, value >>= 8U) out.push_back(static_cast<char>(value));
  return out;
}
std::string frame(int operation, const std::string& body) {
  return number(body.size(), 4) + number(static_cast<std::uint64_t>(operation), 4) + body;
}
std::string text(const std::string& bytes) { return number(bytes.size(), 4) + bytes; }
constexpr int set_operation = 1;
constexpr int get_operation = 2;

struct loaded {
  explicit loaded(std::size_t usual_mebibytes = 24)
      : limit(limit_in_mebibytes(usual_mebibytes) << 20U),
        times(std::max<int>(1, static_cast<int>(limit / (24 << 20U)))) {}

  const std::size_t limit;
  const int times;  ///< as much load as for 24 MiB
  ferry_test::child_process child{{.role = "store server under load", .arguments = {std::to_string(limit)}}};
  std::uint16_t port = static_cast<std::uint16_t>(std::stoi(child.read_line()));

  [[nodiscard]] raw_socket client() const {
    raw_socket peer = raw_socket::connect(port);
    REQUIRE(peer.send("FSTR" + number(1, 2) + number(0, 2 + 8) + number(99, 8)));
    REQUIRE(peer.receive(32).size() == 32);
    return peer;
  }
  std::size_t grown() {
    child.write_line("grown");
    return std::stoull(child.read_line());
  }
  void check(std::string_view load) {
    const std::size_t bytes = grown();
    MESSAGE(std::string(load), ": ", bytes >> 20U, " MiB resident under a limit of ", limit >> 20U, " MiB");
    CHECK(bytes > limit / 4);  // the load has arrived
    // Sanitizers have memory of their own for every block.
    if (!ferry_test::sanitized) CHECK(bytes < limit + limit * 3 / 10 + slack);
  }
};

}  // namespace

namespace {

// Sets keys without waiting for each: a store at a limit of a gigabyte takes millions of them.
class writer {
 public:
  explicit writer(const loaded& server) : peer_(server.client()) {}

  void set(std::string_view key, std::size_t value_bytes, char value = 'x') {
    waiting_ += frame(set_operation, text(std::string(key)) + text(std::string(value_bytes, value)));
    ++unanswered_;
    if (waiting_.size() >= std::size_t{1} << 16U) flush();
  }
  void flush() {
    REQUIRE(peer_.send(waiting_));
    waiting_.clear();
    for (; unanswered_ != 0; --unanswered_) {
      const std::string header = peer_.receive(8);
      REQUIRE(header.size() == 8);
      std::uint32_t length = 0;
      std::memcpy(&length, header.data(), sizeof length);
      REQUIRE(peer_.receive(length).size() == length);
      if (header[4] != 0) ++refused_;
    }
  }
  [[nodiscard]] int refused() const { return refused_; }

 private:
  raw_socket peer_;
  std::string waiting_;
  int unanswered_ = 0;
  int refused_ = 0;
};

}  // namespace

TEST_CASE("values do not take more memory than the store's limit") {
  loaded server;
  writer store(server);
  // From a few bytes to a megabyte, as many bytes of each size; then others in their place, of another size.
  constexpr std::array<std::size_t, 6> sizes{40, 400, 4'000, 30'000, 200'000, 1'000'000};
  const std::size_t share = server.limit / sizes.size() - (std::size_t{1} << 20U);
  const auto count_of = [&](std::size_t size) { return static_cast<int>(share / (size + 160)); };
  const auto key_of = [](std::size_t size, int i) { return fmt::format("a key/of {}/number {}", size, i); };
  for (const std::size_t size : sizes) {
    for (int i = 0; i != count_of(size); ++i) store.set(key_of(size, i), size);
  }
  store.flush();
  server.check("values");
  for (const std::size_t size : sizes) {
    for (int i = 0; i < count_of(size); i += 2) store.set(key_of(size, i), i % 4 == 0 ? size / 2 : size * 3 / 2, 'y');
  }
  store.flush();
  server.check("values, half of them replaced by others");
  CHECK(store.refused() == 0);
}

TEST_CASE("empty values do not take more memory than the store's limit") {
  loaded server(6);
  writer store(server);
  for (int i = 0; store.refused() == 0 && i != server.times * 1'000'000; ++i) store.set(std::to_string(i), 0);
  store.flush();
  CHECK(store.refused() > 0);
  try {
    ferry::tcp_store({.host = "127.0.0.1", .port = server.port}).set("one more", "");
    FAIL("a full store takes another value");
  } catch (const ferry::error& e) {
    CHECK(e.kind() == ferry::errc::store_failed);
  }
  server.check("empty values");
}

TEST_CASE("requests that wait for keys do not take more memory than the store's limit") {
  loaded server;
  std::string body = std::string(1, '\3') + number(2000, 4);  // wait, with values
  for (int i = 0; i != 2000; ++i)
    body += text("a key that will never be written, number " + std::to_string(100'000 + i) + std::string(900, '.'));
  std::vector<raw_socket> waiting;
  bool refused = false;
  for (int i = 0; !refused && i != server.times * 200; ++i) {
    waiting.push_back(server.client());
    REQUIRE(waiting.back().send(frame(get_operation, body)));
    // Another client is served meanwhile; once the limit is reached, the request itself is answered.
    ferry::tcp_store({.host = "127.0.0.1", .port = server.port}).set("served", "yes");
    pollfd answer{waiting.back().descriptor(), POLLIN, 0};
    refused = ::poll(&answer, 1, 20) == 1;
  }
  if (!refused) {  // a slow server: it has yet to read the last request
    pollfd answer{waiting.back().descriptor(), POLLIN, 0};
    refused = ::poll(&answer, 1, 60'000) == 1;
  }
  CHECK(refused);
  server.check("waiting requests");
}

TEST_CASE("unfinished messages do not take more memory than the store's limit") {
  loaded server;
  const std::string most_of_it = frame(set_operation, text("k") + text(std::string(1 << 20, 'x'))).substr(0, 1 << 20);
  std::vector<raw_socket> peers;
  for (int i = 0; i != server.times * 80; ++i) {
    peers.push_back(server.client());
    (void)peers.back().send(most_of_it);
  }
  server.check("unfinished messages");
}

TEST_CASE("replies that clients do not read do not take more memory than the store's limit") {
  loaded server;
  ferry::tcp_store({.host = "127.0.0.1", .port = server.port}).set("k", std::string(4 << 20, 'x'));
  std::string body = std::string(1, '\2') + number(2, 4) + text("k") + text("k");  // the value, twice
  std::vector<raw_socket> peers;
  for (int i = 0; i != server.times * 40; ++i) {
    peers.push_back(server.client());
    const int small = 4096;  // so that the kernel takes little of a reply
    ::setsockopt(peers.back().descriptor(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    (void)peers.back().send(frame(get_operation, body));
  }
  ferry::tcp_store({.host = "127.0.0.1", .port = server.port}).set("served", "yes");
  server.check("unread replies");
}

}  // namespace store_memory_test
