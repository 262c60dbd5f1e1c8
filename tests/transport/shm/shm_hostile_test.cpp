// Peers of the transport over shared memory that lie, break off or die: each harms its own connection only.

#include "transport/shm/shared_rings.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <ferry/transport/address.hpp>

#include <ferry/test_kit/child_process.hpp>
#include <ferry/test_kit/transport_kit.hpp>
#include "../attacked_transport.hpp"
#include "../sockets/raw_socket.hpp"
#include "base/net/socket_address.hpp"
#include "captured_log.hpp"
#include "transport/sockets/handshake.hpp"

namespace shm_hostile_test {

namespace {

using namespace ferry::test_kit;
namespace d = ferry::detail;

constexpr std::size_t ring_bytes = 4096;

int unix_socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

struct attacked_shm : transport_test::attacked_transport<ferry::shm> {
  using attacked_transport::attacked_transport;

  /// Added to those of a hello.
  std::uint64_t features = 0;

  /// The socket of a peer that has sent its hello, and has not read the answer that has come.
  int greeted_without_reading() {
    const int peer = unix_socket();
    const auto where = d::socket_address::from_unix(ferry::address::parse(address).host);
    REQUIRE(::connect(peer, where.get(), where.size) == 0);
    ferry::hello greeting = hello_to("server");
    greeting.features |= features;
    const auto hello = d::encode_hello(greeting);
    REQUIRE(::send(peer, hello.data(), hello.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(hello.size()));
    char first = 0;
    REQUIRE(::recv(peer, &first, 1, MSG_PEEK) == 1);
    return peer;
  }
  /// The socket of a peer that has completed the handshake and has yet to offer memory.
  int greeted() {
    const int peer = greeted_without_reading();
    std::vector<std::byte> prefix(d::handshake_prefix::encoded_size);
    REQUIRE(::recv(peer, prefix.data(), prefix.size(), MSG_WAITALL) == static_cast<ssize_t>(prefix.size()));
    std::vector<std::byte> body(d::handshake_prefix::decode(prefix.data(), d::answer_magic, "test").body_bytes);
    REQUIRE(::recv(peer, body.data(), body.size(), MSG_WAITALL) == static_cast<ssize_t>(body.size()));
    return peer;
  }
};

/// A peer whose connection is open, with its own mapping of the whole segment.
struct open_peer {
  raw_socket socket;
  int descriptor;
  std::byte* memory = nullptr;
  std::shared_ptr<ferry::connection> far_end;
  std::shared_ptr<recorder> far_log;

  explicit open_peer(attacked_shm& attacked) : descriptor(attacked.greeted()) {
    const auto before = attacked.server->accepted_count();
    auto [rings, segment] = d::shared_rings::create(ring_bytes);
    d::send_offer(descriptor, {ring_bytes}, segment);
    socket = raw_socket(descriptor);
    const auto verdict = socket.receive(d::rings_verdict::encoded_size);
    REQUIRE(verdict.size() == d::rings_verdict::encoded_size);
    REQUIRE(d::rings_verdict::decode(std::span(verdict).first<d::rings_verdict::encoded_size>()).accepted());
    memory = static_cast<std::byte*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, segment.get(), 0));
    REQUIRE(memory != MAP_FAILED);
    std::tie(far_end, far_log) = attacked.server->accepted(before);
  }
  ~open_peer() {
    far_end->close(ferry::make_error(ferry::errc::shutting_down, "the test is over"));
    CHECK(far_log->wait_closed());
    ::munmap(memory, size);
  }
  open_peer(const open_peer&) = delete;
  open_peer& operator=(const open_peer&) = delete;

  /// Ring 0 is written by this peer, ring 1 read.
  [[nodiscard]] d::ring_control& control(std::size_t ring) const {
    return *reinterpret_cast<d::ring_control*>(memory + ring * sizeof(d::ring_control));
  }
  [[nodiscard]] std::byte* data(std::size_t ring) const { return memory + d::ring_controls_bytes + ring * ring_bytes; }
  void claim_written(std::uint64_t index) const { std::atomic_ref(control(0).written).store(index); }
  void wake() const { socket.send("x"); }

  static constexpr std::size_t size = d::ring_controls_bytes + 2 * ring_bytes;
};

/// A hand-written server over a unix socket: accepts one peer and greets it, then does as it likes.
struct raw_shm_server {
  std::string name =
      "@ferry-test-" + std::to_string(::getpid()) + "-" + std::to_string(ferry::incarnation_id::random().value);
  int listening = unix_socket();
  std::thread thread;

  explicit raw_shm_server(std::function<void(int)> then) {
    const auto where = d::socket_address::from_unix(name);
    REQUIRE(::bind(listening, where.get(), where.size) == 0);
    REQUIRE(::listen(listening, 1) == 0);
    thread = std::thread([this, then = std::move(then)] {
      const int peer = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
      if (peer < 0) return;
      std::vector<std::byte> hello(d::encode_hello(hello_to("server")).size());
      (void)::recv(peer, hello.data(), hello.size(), MSG_WAITALL);
      const auto answer =
          d::encode_answer(ferry::hello_reply{"server", ferry::worker_id{7}, ferry::incarnation_id{99}, 0});
      (void)::send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
      then(peer);
      ::close(peer);
    });
  }
  ~raw_shm_server() {
    ::shutdown(listening, SHUT_RDWR);
    thread.join();
    ::close(listening);
  }
  raw_shm_server(const raw_shm_server&) = delete;
  raw_shm_server& operator=(const raw_shm_server&) = delete;

  /// What connecting to it fails with.
  [[nodiscard]] std::string failure(ferry::transport& over) const {
    const auto result = connect(over, "shm:" + name, hello_to("server"));
    CHECK_FALSE(result.opened);
    return failure_of(result).second;
  }
};

void send_text(int peer, const std::string& text) { (void)!::send(peer, text.data(), text.size(), MSG_NOSIGNAL); }

void read_offer(int peer) {
  std::vector<std::byte> offer(d::rings_offer::encoded_size);
  (void)::recv(peer, offer.data(), offer.size(), MSG_WAITALL);
}

}  // namespace

TEST_CASE("a peer that hands over no usable memory is refused, and told why") {
  attacked_shm shm;
  const auto refused = [&](const std::function<void(int)>& offer, const std::string& why) {
    const int descriptor = shm.greeted();
    offer(descriptor);
    const raw_socket peer(descriptor);
    const auto verdict = peer.receive(d::rings_verdict::encoded_size);
    REQUIRE(verdict.size() == d::rings_verdict::encoded_size);
    const auto read = d::rings_verdict::decode(std::span(verdict).first<d::rings_verdict::encoded_size>());
    CHECK_FALSE(read.accepted());
    const auto text = peer.receive(read.text_bytes);
    const std::string said(reinterpret_cast<const char*>(text.data()), text.size());
    CHECK_MESSAGE(said.find(why) != said.npos, said);
    CHECK(peer.wait_closed());
  };
  refused([](int peer) { send_text(peer, std::string(d::rings_offer::encoded_size, 'x')); }, "0 descriptors");
  refused([](int peer) { send_text(peer, "x"); }, "cut off");
  refused(
      [](int peer) {
        const d::unique_fd short_one(::memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        d::send_offer(peer, {ring_bytes}, short_one);
      },
      "not sealed");
  CHECK(shm.log.wait_for_line("its shared memory is refused"));
  CHECK(shm.server->accepted_count() == 0);
  shm.serves_others();
}

TEST_CASE("a peer that promises host memory hands it over, or is refused; what cannot be used is done without") {
  attacked_shm shm;
  shm.features = ferry::feature_host_memory | ferry::feature_device_tensors;
  const auto offered = [&](int host_memory) {
    const int descriptor = shm.greeted();
    auto [rings, segment] = d::shared_rings::create(ring_bytes);
    d::send_offer(descriptor, {ring_bytes}, segment, host_memory);
    return std::pair(descriptor, std::move(rings));
  };
  {
    const auto [descriptor, rings] = offered(-1);
    const raw_socket peer(descriptor);
    const auto verdict = peer.receive(d::rings_verdict::encoded_size);
    REQUIRE(verdict.size() == d::rings_verdict::encoded_size);
    CHECK_FALSE(d::rings_verdict::decode(std::span(verdict).first<d::rings_verdict::encoded_size>()).accepted());
    CHECK(shm.log.wait_for_line("comes with 1 descriptors"));
    CHECK(shm.server->accepted_count() == 0);
  }
  const d::unique_fd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), 1 << 20) == 0);
  const d::unique_fd sealed(::memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(sealed.get(), 1 << 20) == 0);
  REQUIRE(::fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  for (const bool good : {false, true}) {
    CAPTURE(good);
    const auto before = shm.server->accepted_count();
    const auto [descriptor, rings] = offered(good ? sealed.get() : unsealed.get());
    const raw_socket peer(descriptor);
    pollfd answer{descriptor, POLLIN, 0};
    REQUIRE(::poll(&answer, 1, -1) == 1);
    const auto got = d::receive_verdict(descriptor);
    REQUIRE(got.verdict);
    CHECK(got.verdict->accepted());
    CHECK(got.host_memory);
    const auto [far_end, far_log] = shm.server->accepted(before);
    CHECK((std::atomic_ref(rings->lent().reads_host).load() != 0) == good);
    far_end->close(ferry::make_error(ferry::errc::shutting_down, "the test is over"));
    CHECK(far_log->wait_closed());
  }
  shm.serves_others();
}

TEST_CASE("a peer that breaks off instead of handing over memory is dropped") {
  attacked_shm shm;
  // A worker that ends while it connects looks like this: nothing to warn about.
  const ferry_test::captured_log log;
  ::close(shm.greeted());
  const int unread = shm.greeted_without_reading();
  ::close(unread);  // which resets the connection
  shm.serves_others();
  CHECK(shm.server->accepted_count() == 0);
  CHECK(log.size() == 0);
}

TEST_CASE("a server that takes no memory is one that cannot be reached over shm") {
  const auto loop = test_reactor();
  const auto over = ferry::transport_traits<ferry::shm>::open(*loop);
  SUBCASE("it refuses") {
    const raw_shm_server server([](int peer) {
      read_offer(peer);
      send_text(peer, d::rings_verdict::encode_refusal(ferry::errc::handshake_failed, "no memory for you"));
    });
    const auto text = server.failure(*over);
    CHECK_MESSAGE(text.find("no memory for you") != text.npos, text);
  }
  SUBCASE("its verdict makes no sense") {
    const raw_shm_server server([](int peer) {
      read_offer(peer);
      send_text(peer, "nonsense");
    });
    const auto text = server.failure(*over);
    CHECK_MESSAGE(text.find("cannot be read") != text.npos, text);
  }
  SUBCASE("it closes") {
    const raw_shm_server server(&read_offer);
    const auto text = server.failure(*over);
    CHECK_MESSAGE(text.find("closed the connection during the handshake") != text.npos, text);
  }
}

TEST_CASE("a peer that writes indices out of range loses its connection, and only that") {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  attacked_shm shm;
  SUBCASE("of what it has written") {
    for (const std::uint64_t index : {std::uint64_t{ring_bytes + 1}, std::uint64_t{1} << 63U, most}) {
      open_peer peer(shm);
      peer.claim_written(index);
      peer.wake();
      CHECK(peer.far_log->wait_closed());
      CHECK_MESSAGE(peer.far_log->reason().find("out of range") != std::string::npos, peer.far_log->reason());
      CHECK(shm.log.wait_for_line("broke the protocol"));
      shm.serves_others();
    }
  }
  SUBCASE("of what it has read, when there is nothing to be read") {
    open_peer peer(shm);
    std::atomic_ref(peer.control(1).consumed).store(most);
    // A message that does not fit, so that the writer looks at the index.
    peer.far_end->send(make_message(1, 3 * ring_bytes));
    CHECK(peer.far_log->wait_closed());
    CHECK(shm.log.wait_for_line("out of range"));
    shm.serves_others();
  }
  SUBCASE("of what it has read, while the other end waits for room") {
    open_peer peer(shm);
    peer.far_end->send(make_message(1, 3 * ring_bytes));
    while (std::atomic_ref(peer.control(1).writer_sleeps).load() == 0) std::this_thread::yield();
    std::atomic_ref(peer.control(1).consumed).store(ring_bytes + 1);
    peer.wake();
    CHECK(peer.far_log->wait_closed());
    shm.serves_others();
  }
}

TEST_CASE("bytes that are no message end the connection") {
  attacked_shm shm;
  open_peer peer(shm);
  std::memset(peer.data(0), 0xee, ring_bytes);
  peer.claim_written(ring_bytes);
  peer.wake();
  CHECK(peer.far_log->wait_closed());
  CHECK(shm.log.wait_for_line("broke the protocol"));
  shm.serves_others();
}

TEST_CASE("a peer that changes its memory while it is read gets what is there, or an error") {
  attacked_shm shm;
  open_peer peer(shm);
  peer.far_log->forget_messages();
  std::atomic<bool> over{false};
  std::thread scribbler([&] {
    std::uint64_t index = 0;
    for (std::uint32_t i = 0; !over; ++i) {
      peer.data(0)[(i * 7919) % ring_bytes] = static_cast<std::byte>(i);
      if (i % 64 == 0) {
        index += i % 4096;
        peer.claim_written(i % 1024 == 0 ? i * std::uint64_t{2654435761U} : index);
        std::atomic_ref(peer.control(0).reader_sleeps).store(i);
        std::atomic_ref(peer.control(1).writer_sleeps).store(i);
        peer.wake();
      }
    }
  });
  for (int i = 0; i != 100; ++i) peer.far_end->send(make_message(7, 200));
  CHECK(peer.far_log->wait_closed());
  over = true;
  scribbler.join();
  shm.serves_others();
}

TEST_CASE("what a peer wrote before it ended still arrives") {
  attacked_shm shm;
  auto peer = std::make_unique<open_peer>(shm);
  const auto message = make_message(5, 300);
  std::memcpy(peer->data(0), message.bytes.data(), message.bytes.size());
  peer->claim_written(message.bytes.size());
  SUBCASE("between two messages") {
    peer->socket = raw_socket();
    CHECK(peer->far_log->wait_closed());
    const auto arrived = peer->far_log->take(1);
    REQUIRE(arrived.size() == 1);
    CHECK(is_message(arrived[0], 5, 300));
  }
  SUBCASE("in the middle of one") {
    std::memcpy(peer->data(0) + message.bytes.size(), message.bytes.data(), 100);
    peer->claim_written(message.bytes.size() + 100);
    peer->socket = raw_socket();
    CHECK(peer->far_log->wait_closed());
    CHECK(peer->far_log->count() == 1);
    CHECK_MESSAGE(peer->far_log->reason().find("in the middle of a message") != std::string::npos,
                  peer->far_log->reason());
  }
  peer.reset();
  shm.serves_others();
}

TEST_CASE("a peer that only wakes the other end, again and again, delays no other peer") {
  attacked_shm shm;
  open_peer peer(shm);
  std::atomic<bool> over{false};
  std::thread waking([&] {
    while (!over) peer.wake();
  });
  shm.serves_others();
  const auto message = make_message(9, 50);
  std::memcpy(peer.data(0), message.bytes.data(), message.bytes.size());
  peer.claim_written(message.bytes.size());
  CHECK(peer.far_log->wait_for_count(1));
  over = true;
  waking.join();
}

TEST_CASE("a process that is killed while it sends ends its connection") {
  if (child_process::current_role() == "sender") {
    const auto loop = test_reactor();
    const auto over = ferry::transport_traits<ferry::shm>::open(*loop);
    auto result = connect(*over, given("SHM_TEST_ADDRESS"), hello_to("server"));
    REQUIRE(result.opened);
    result.opened->start(std::make_shared<recorder>());
    const auto big = make_tensor(1, 1'000'000);
    for (std::uint64_t i = 0;; ++i) {
      if (result.opened->unwritten_bytes() < 10'000'000) {
        result.opened->send(make_message(i, i % 5000, i % 3 == 0 ? std::vector{big} : std::vector<ferry::tensor>{}));
      } else {
        std::this_thread::yield();
      }
    }
  }
  attacked_shm shm([](recorder& log) { log.forget_messages(); });
  for (std::size_t i = 0; i != 8; ++i) {
    auto child = child_process::in_role("sender", {{"SHM_TEST_ADDRESS", shm.address}});
    const auto [far_end, far_log] = shm.server->accepted(i);
    CHECK(far_log->wait_for_count(1 + 37 * i));
    child.kill(SIGKILL);
    CHECK(far_log->wait_closed());
    CHECK_MESSAGE(far_log->reason().find("the peer closed the connection") != std::string::npos, far_log->reason());
    CHECK(child.wait() == 128 + SIGKILL);
  }
  shm.serves_others();
}

}  // namespace shm_hostile_test
