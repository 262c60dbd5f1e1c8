// Misbehaving peers: each gets an error or is dropped, with a log line, and no other peer is affected.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include <sys/resource.h>

#include <ferry/transport/address.hpp>

#include <ferry/test_kit/transport_kit.hpp>
#include "../attacked_transport.hpp"
#include "printed_time.hpp"
#include "raw_socket.hpp"
#include "transport/sockets/handshake.hpp"

namespace tcp_hostile_test {

namespace {

using namespace ferry::test_kit;
namespace d = ferry::detail;

struct attacked_tcp : transport_test::attacked_transport<ferry::tcp> {
  std::uint16_t port = ferry::address::parse(address).port;

  /// A raw peer that has completed the handshake.
  raw_socket greeted() {
    auto peer = raw_socket::connected(port);
    peer.send(d::encode_hello(hello_to("server")));
    const auto prefix = peer.receive(d::handshake_prefix::encoded_size);
    REQUIRE(prefix.size() == d::handshake_prefix::encoded_size);
    const auto body = d::handshake_prefix::decode(prefix.data(), d::answer_magic, "test").body_bytes;
    REQUIRE(peer.receive(body).size() == body);
    return peer;
  }
};

std::vector<std::byte> with_versions(std::vector<std::byte> handshake, std::uint8_t newest, std::uint8_t oldest) {
  handshake[8] = std::byte{newest};
  handshake[12] = std::byte{oldest};
  return handshake;
}

/// A hand-written server: reads a hello, sends `answer`, and keeps the connection until the end of the test.
struct raw_server {
  raw_socket listening = raw_socket::listening();
  raw_socket peer;
  std::thread thread;
  std::string address() const { return "tcp://127.0.0.1:" + std::to_string(listening.port()); }
  explicit raw_server(std::vector<std::byte> answer, bool close = false) {
    thread = std::thread([this, answer = std::move(answer), close] {
      try {
        peer = listening.accept();
      } catch (const std::runtime_error&) {
        return;  // no connection was made
      }
      (void)peer.receive(d::encode_hello(hello_to("server")).size());
      peer.send(answer);
      if (close) peer = raw_socket();
    });
  }
  ~raw_server() {
    listening.stop_listening();
    thread.join();
  }
};

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* at = reinterpret_cast<const std::byte*>(text.data());
  return {at, at + text.size()};
}

}  // namespace

TEST_CASE("tcp drops peers that do not speak ferry") {
  attacked_tcp tcp;
  for (const std::string_view text :
       {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        "\x89"
        "FERRY<\n............and more"}) {
    const auto peer = raw_socket::connected(tcp.port);
    peer.send(std::string(text) + std::string(30, '\0'));
    CHECK(peer.wait_closed());
  }
  CHECK(tcp.log.wait_for_line("does not speak ferry"));
  std::mt19937 random(11);
  for (int i = 0; i < 50; ++i) {
    std::string garbage(random() % 200, '\0');
    for (auto& byte : garbage) byte = static_cast<char>(random());
    const auto peer = raw_socket::connected(tcp.port);
    peer.send(garbage);
    peer.finish_sending();
    CHECK(peer.wait_closed());
  }
  tcp.serves_others();
}

TEST_CASE("tcp reports another protocol version, on both ends") {
  attacked_tcp tcp;
  const auto peer = raw_socket::connected(tcp.port);
  peer.send(with_versions(d::encode_hello(hello_to("server")), 99, 98));
  const auto prefix_bytes = peer.receive(d::handshake_prefix::encoded_size);
  REQUIRE(prefix_bytes.size() == d::handshake_prefix::encoded_size);
  const auto prefix = d::handshake_prefix::decode(prefix_bytes.data(), d::answer_magic, "test");
  CHECK(prefix.version == d::protocol_version);
  const auto answer = d::decode_answer(peer.receive(prefix.body_bytes));
  REQUIRE(std::holds_alternative<d::refusal>(answer));
  CHECK(std::get<d::refusal>(answer).code == ferry::errc::version_mismatch);
  CHECK(peer.wait_closed());
  CHECK(tcp.log.wait_for_line("versions 98 to 99, this process speaks version 1"));

  raw_server newer(with_versions(d::encode_answer(ferry::hello_reply{"server", {}, {}, 0}), 99, 99));
  const auto [kind, text] = failure_of(connect(*tcp.over, newer.address(), hello_to("server")));
  CHECK(kind == ferry::errc::version_mismatch);
  CHECK_MESSAGE(text.find("version 99, this process speaks version 1") != text.npos, text);
  tcp.serves_others();
}

TEST_CASE("tcp drops handshakes that announce or contain too much") {
  attacked_tcp tcp;
  auto hello = d::encode_hello(hello_to("server"));
  SUBCASE("a body of 4 GiB") {
    std::fill_n(hello.begin() + 16, 4, std::byte{0xff});
    const auto peer = raw_socket::connected(tcp.port);
    peer.send(hello);
    CHECK(peer.wait_closed());
    CHECK(tcp.log.wait_for_line("more than 4096"));
  }
  SUBCASE("a group of 65535 bytes") {
    hello[20 + 28] = hello[20 + 29] = std::byte{0xff};
    const auto peer = raw_socket::connected(tcp.port);
    peer.send(hello);
    CHECK(peer.wait_closed());
    CHECK(tcp.log.wait_for_line("more than 512"));
  }
  SUBCASE("a name that the body does not hold") {
    hello[20 + 28] = std::byte{200};
    const auto peer = raw_socket::connected(tcp.port);
    peer.send(hello);
    CHECK(peer.wait_closed());
    CHECK(tcp.log.wait_for_line("ends before the group"));
  }
  SUBCASE("a truncation") {
    for (std::size_t size = 0; size < hello.size(); size += 3) {
      const auto peer = raw_socket::connected(tcp.port);
      peer.send(std::span(hello).first(size));
      peer.finish_sending();
      CHECK(peer.wait_closed());
    }
  }
  SUBCASE("random bytes after a valid prefix") {
    std::mt19937 random(5);
    for (int i = 0; i < 100; ++i) {
      auto damaged = hello;
      for (int flips = 0; flips < 3; ++flips)
        damaged[8 + random() % (damaged.size() - 8)] ^= std::byte{static_cast<unsigned char>(1U << (random() % 8))};
      const auto peer = raw_socket::connected(tcp.port);
      peer.send(damaged);
      peer.finish_sending();
      CHECK(peer.wait_closed());
    }
  }
  tcp.serves_others();
}

TEST_CASE("tcp serves others while many peers leave their handshakes incomplete") {
  attacked_tcp tcp;
  const auto begun = std::chrono::steady_clock::now();
  std::vector<raw_socket> idle;
  for (int i = 0; i < 400; ++i) {
    idle.push_back(raw_socket::connected(tcp.port));
    idle.back().send(
        "\x89"
        "FERRY");
  }
  tcp.serves_others();  // as soon as the oldest of them have reached their time limit
  CHECK(tcp.log.wait_for_line("its handshake did not end in time"));
  const auto windows = 1 + (std::chrono::steady_clock::now() - begun) / std::chrono::seconds(5);
  CHECK(static_cast<long>(tcp.log.count("its handshake did not end in time")) <=
        20 * windows);  // not one line per peer
}

TEST_CASE("tcp answers peers when no descriptors are left for accept, however many others are silent") {
  attacked_tcp tcp;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  std::vector<raw_socket> silent;
  for (int i = 0; i != 100; ++i) silent.push_back(raw_socket::unconnected());  // more than are held back
  const auto peer = raw_socket::unconnected();
  const int lowest_free = ::dup(0);
  ::close(lowest_free);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(lowest_free);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
  for (const auto& each : silent) each.connect(tcp.port);
  peer.connect(tcp.port);
  peer.send(d::encode_hello(hello_to("server")));
  CHECK(peer.receive(d::handshake_prefix::encoded_size).size() == d::handshake_prefix::encoded_size);
  CHECK(peer.wait_closed());  // it was a refusal
  ::setrlimit(RLIMIT_NOFILE, &before);
  tcp.serves_others();
  CHECK(tcp.log.count("RLIMIT_NOFILE") <= 1);
}

TEST_CASE("tcp drops a peer whose frames are damaged") {
  attacked_tcp tcp;
  SUBCASE("a header that declares 2^60 bytes") {
    auto message = make_message(1, 100);
    message.header.payload_bytes = std::uint64_t{1} << 60U;
    message.header.encode(message.bytes.data());
    const auto peer = tcp.greeted();
    peer.send(message.bytes.bytes());
    CHECK(peer.wait_closed());
    CHECK(tcp.log.wait_for_line("broke the protocol"));
    CHECK(tcp.server->accepted().second->wait_closed());
    CHECK_MESSAGE(tcp.server->accepted().second->reason().find("protocol_error") == 0,
                  tcp.server->accepted().second->reason());
  }
  SUBCASE("a truncated message") {
    const auto message = make_message(1, 1000, {make_tensor(1, 1000)});
    for (const std::size_t size :
         {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{500}, message.bytes.size()}) {
      const auto peer = tcp.greeted();
      peer.send(message.bytes.bytes().first(size));
      peer.finish_sending();
      CHECK(peer.wait_closed());
    }
  }
  SUBCASE("bits flipped at random") {
    std::mt19937 random(3);
    const auto message = make_message(1, 40, {make_tensor(1, 64)});
    for (int i = 0; i < 300; ++i) {
      std::vector<std::byte> bytes(message.bytes.data(), message.bytes.data() + message.bytes.size());
      for (unsigned flips = 1 + random() % 3; flips != 0; --flips) {
        bytes[random() % bytes.size()] ^= std::byte{static_cast<unsigned char>(1U << (random() % 8))};
      }
      const auto peer = tcp.greeted();
      peer.send(bytes);
      peer.finish_sending();  // ends those whose damage only announced more bytes
      CHECK(peer.wait_closed());
      CHECK(tcp.server->accepted(static_cast<std::size_t>(i)).second->wait_closed());
    }
  }
  tcp.serves_others();
}

TEST_CASE("connecting to an address without a ferry worker fails with an explanation") {
  attacked_tcp tcp;
  SUBCASE("no listener") {
    std::string address;
    {
      const auto was_listening = raw_socket::listening();
      address = "tcp://127.0.0.1:" + std::to_string(was_listening.port());
    }
    const auto [kind, text] = failure_of(connect(*tcp.over, address, hello_to("server")));
    CHECK(kind == ferry::errc::connect_failed);
    CHECK_MESSAGE(text == "connect_failed: cannot connect to worker 'server' at " + address + ": Connection refused",
                  text);
  }
  SUBCASE("a web server") {
    raw_server web(bytes_of("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"));
    const auto [kind, text] = failure_of(connect(*tcp.over, web.address(), hello_to("server")));
    CHECK(kind == ferry::errc::handshake_failed);
    CHECK_MESSAGE(text.find("does not speak ferry") != text.npos, text);
  }
  SUBCASE("a server that closes") {
    raw_server closing({}, true);
    const auto [kind, text] = failure_of(connect(*tcp.over, closing.address(), hello_to("server")));
    CHECK(kind == ferry::errc::connect_failed);
    CHECK_MESSAGE(text.find("closed the connection during the handshake") != text.npos, text);
  }
  SUBCASE("a server that sends nothing") {
    raw_server silent({});
    const auto began = std::chrono::steady_clock::now();
    const auto [kind, text] = failure_of(connect(*tcp.over, silent.address(), hello_to("server"), {},
                                                 ferry::deadline::after(std::chrono::milliseconds(200))));
    CHECK(kind == ferry::errc::connect_failed);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const double told = ferry_test::seconds_behind("no answer within ", text);
    CHECK_MESSAGE(told >= 0.2, text);
    CHECK_MESSAGE(told <= took.count() + 0.05, text);  // rounded
  }
  SUBCASE("another worker") {
    raw_server other(d::encode_answer(ferry::hello_reply{"other", {}, {}, 0}));
    const auto [kind, text] = failure_of(connect(*tcp.over, other.address(), hello_to("server")));
    CHECK(kind == ferry::errc::handshake_failed);
    CHECK_MESSAGE(text.find("worker 'other' answered") != text.npos, text);
  }
  SUBCASE("an answer that is too long") {
    auto answer = d::encode_answer(ferry::hello_reply{"server", {}, {}, 0});
    std::fill_n(answer.begin() + 16, 4, std::byte{0xff});
    raw_server hostile(answer);
    const auto [kind, text] = failure_of(connect(*tcp.over, hostile.address(), hello_to("server")));
    CHECK(kind == ferry::errc::handshake_failed);
    CHECK_MESSAGE(text.find("more than 4096") != text.npos, text);
  }
  SUBCASE("a host name that does not exist") {
    const auto [kind, text] = failure_of(connect(*tcp.over, "tcp://no-such-host.invalid:1", hello_to("server")));
    CHECK(kind == ferry::errc::bad_address);
    CHECK_MESSAGE(text.find("cannot resolve the host 'no-such-host.invalid'") != text.npos, text);
  }
  SUBCASE("a name of its own that is too long") {
    auto hello = hello_to("server");
    hello.name = std::string(128, 'x');
    CHECK(failure_of(connect(*tcp.over, tcp.address, hello)).first == ferry::errc::invalid_argument);
  }
  SUBCASE("a transport that is destroyed meanwhile") {
    raw_server silent({});
    auto outcome = std::make_shared<std::promise<ferry::connect_result>>();
    auto result = outcome->get_future();
    tcp.over->connect(silent.address(), hello_to("server"), {}, {},
                      [outcome](ferry::connect_result done) { outcome->set_value(std::move(done)); });
    for (const auto* name : {"server", "honest"}) tcp.over->unlisten("group", name);
    tcp.over.reset();
    const auto [kind, text] = failure_of(result.get());
    CHECK(kind == ferry::errc::connect_failed);
    CHECK_MESSAGE(text.find("shut down") != text.npos, text);
    tcp.over = ferry::transport_traits<ferry::tcp>::open(*tcp.loop);
    tcp.address = tcp.over->listen("group", "server", "", {}, tcp.server).front();
    tcp.over->listen("group", "honest", "", {}, tcp.honest);
  }
  tcp.serves_others();
}

}  // namespace tcp_hostile_test
