// Proofs of the shared secret: only peers that have it are admitted, whatever others recorded or altered in transit.

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include <ferry/base/secret.hpp>
#include <ferry/transport/address.hpp>

#include <ferry/test_kit/transport_kit.hpp>
#include "expect_error.hpp"
#include "raw_socket.hpp"
#include "transport/sockets/handshake.hpp"

namespace authentication_test {

namespace {

using namespace ferry::test_kit;
namespace d = ferry::detail;

const std::string right = "the secret of the group";
const std::string wrong = "another secret";

// A build without libcrypto cannot prove anything; its error is tested below.
#define NEEDS_AUTHENTICATION() \
  if (!ferry::authentication_available()) return

ferry::transport_options with_secret(std::string secret) {
  ferry::transport_options result;
  result.secret = std::move(secret);
  return result;
}

template <class Tag>
struct guarded {
  captured_log log;
  std::shared_ptr<ferry::reactor> loop = test_reactor();
  std::shared_ptr<ferry::transport> over = ferry::transport_traits<Tag>::open(*loop);
  std::shared_ptr<accepting_worker> server = std::make_shared<accepting_worker>("server");
  std::string address;

  explicit guarded(const ferry::transport_options& options)
      : address(over->listen("group", "server", "", options, server).front()) {}
  ~guarded() { over->unlisten("group", "server"); }

  ferry::connect_result connect(const std::string& secret, const std::string& target = "server") {
    return test_kit_connect(*over, address, hello_to(target), with_secret(secret));
  }
  [[nodiscard]] std::uint16_t port() const { return ferry::address::parse(address).port; }
  void lets_in(const std::string& secret) {
    const auto before = server->accepted_count();
    auto result = connect(secret);
    INFO(failure_of(result).second);
    REQUIRE(result.opened);
    CHECK(((result.peer.features & ferry::feature_authenticated) != 0) == !secret.empty());
    const auto own_log = std::make_shared<recorder>();
    result.opened->start(own_log);
    result.opened->send(make_message(1, 100));
    const auto [far_end, far_log] = server->accepted(before);
    CHECK(far_log->wait_for_count(1));
    CHECK(((server->greeting(before).features & ferry::feature_authenticated) != 0) == !secret.empty());
    result.opened->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    CHECK(far_log->wait_closed());
  }
  void keeps_out(const std::string& secret, std::string_view reason) {
    const auto before = server->accepted_count();
    const auto result = connect(secret);
    const auto [kind, text] = failure_of(result);
    CHECK_MESSAGE(kind == ferry::errc::authentication_failed, text);
    CHECK_MESSAGE(text.find(reason) != text.npos, text);
    CHECK_MESSAGE(text.find("cannot connect to worker 'server' at ") != text.npos, text);
    for (const auto& told : {right, wrong}) CHECK(text.find(told) == text.npos);
    CHECK_FALSE(result.gone);
    CHECK(server->accepted_count() == before);
  }

 private:
  template <class... Args>
  static auto test_kit_connect(Args&&... args) {
    return ferry::test_kit::connect(std::forward<Args>(args)...);
  }
};

std::vector<std::byte> receive_message(const raw_socket& peer) {
  auto result = peer.receive(d::handshake_prefix::encoded_size);
  if (result.size() != d::handshake_prefix::encoded_size) return {};
  const auto size = std::to_integer<std::size_t>(result[16]) + 256 * std::to_integer<std::size_t>(result[17]);
  const auto body = peer.receive(size);
  result.insert(result.end(), body.begin(), body.end());
  return result;
}

std::span<const std::byte> body_of(std::span<const std::byte> message) {
  return message.subspan(d::handshake_prefix::encoded_size);
}

std::optional<d::refusal> refusal_in(std::span<const std::byte> message) {
  if (message.empty()) return std::nullopt;
  const auto answer = d::decode_answer(body_of(message));
  const auto* why = std::get_if<d::refusal>(&answer);
  return why ? std::optional(*why) : std::nullopt;
}

/// A hand-written peer that has sent its hello and received a challenge.
struct challenged {
  d::nonce once = d::fresh_nonce();
  std::vector<std::byte> hello = d::encode_hello(hello_to("server"), &once);
  raw_socket peer;
  std::vector<std::byte> challenge;

  explicit challenged(std::uint16_t port) : challenged(port, std::nullopt) {}
  challenged(std::uint16_t port, std::optional<std::vector<std::byte>> said) : peer(raw_socket::connected(port)) {
    if (said) hello = *said;
    peer.send(hello);
    challenge = receive_message(peer);
    REQUIRE(std::holds_alternative<d::challenge>(d::decode_answer(body_of(challenge))));
  }
  /// Whether the server admits it with this proof.
  bool enters(std::span<const std::byte> proof) const {
    peer.send(proof);
    const auto answer = receive_message(peer);
    if (answer.empty()) return false;
    const auto why = refusal_in(answer);
    if (why) CHECK(why->code == ferry::errc::authentication_failed);
    return !why;
  }
};

/// A hand-written accepting end; `serve` gets the connection.
struct raw_server {
  raw_socket listening = raw_socket::listening();
  std::thread thread;
  explicit raw_server(std::function<void(raw_socket&)> serve) {
    thread = std::thread([this, serve = std::move(serve)] {
      try {
        auto peer = listening.accept();
        serve(peer);
      } catch (const std::runtime_error&) {
        return;  // no connection was made
      }
    });
  }
  ~raw_server() {
    listening.stop_listening();
    thread.join();
  }
  [[nodiscard]] std::string address() const { return "tcp://127.0.0.1:" + std::to_string(listening.port()); }
};

ferry::connect_result connect_to(guarded<ferry::tcp>& from, const raw_server& to, const std::string& secret) {
  return ferry::test_kit::connect(*from.over, to.address(), hello_to("server"), with_secret(secret));
}

}  // namespace

TEST_CASE_TEMPLATE("only a peer that proves the secret is admitted", Tag, ferry::tcp, ferry::unix_domain, ferry::shm,
                   ferry::inproc) {
  NEEDS_AUTHENTICATION();
  constexpr bool in_memory = std::is_same_v<Tag, ferry::inproc>;
  SUBCASE("the worker has a secret") {
    guarded<Tag> worker(with_secret(right));
    worker.lets_in(right);
    worker.keeps_out(wrong, in_memory ? "do not have the same secret" : "the secret of the other end is another one");
    worker.keeps_out(
        "", in_memory ? "do not have the same secret" : "a secret is required here, and the other end gave none");
    worker.keeps_out(right + "!", "secret");
    worker.lets_in(right);
    if (!in_memory) {
      CHECK(worker.log.wait_for_line("authentication_failed: the secret of the other end is another one"));
      CHECK(worker.log.wait_for_line("authentication_failed: a secret is required here"));
    }
    for (const auto& secret : {right, wrong}) CHECK(worker.log.count(secret) == 0);
  }
  SUBCASE("the worker has none") {
    guarded<Tag> worker({});
    worker.lets_in("");
    worker.keeps_out(right, in_memory ? "do not have the same secret" : "this worker was started without one");
    worker.lets_in("");
    if (!in_memory) CHECK(worker.log.wait_for_line("this worker was started without one"));
  }
  SUBCASE("secrets of any bytes") {
    for (const auto& secret : {std::string("\0\n", 2), std::string(4096, '\xff'), std::string("x")}) {
      guarded<Tag> worker(with_secret(secret));
      worker.lets_in(secret);
    }
  }
}

TEST_CASE("a build without authentication refuses secrets instead of ignoring them") {
  if (ferry::authentication_available()) return;
  guarded<ferry::tcp> worker({});
  expect_error(ferry::errc::invalid_argument, "built without authentication", [&] { (void)worker.connect(right); });
  expect_error(ferry::errc::invalid_argument, "built without authentication",
               [&] { guarded<ferry::unix_domain> other(with_secret(right)); });
}

TEST_CASE("the name of another worker of the process is revealed to its own group only") {
  NEEDS_AUTHENTICATION();
  guarded<ferry::tcp> worker(with_secret(right));
  const auto known = worker.connect(right, "unknown");
  CHECK(failure_of(known).first == ferry::errc::unknown_worker);
  CHECK(known.gone);
  for (const auto& secret : {wrong, std::string()}) {
    const auto unrelated = worker.connect(secret, "unknown");
    CHECK(failure_of(unrelated).first == ferry::errc::authentication_failed);
    CHECK_FALSE(unrelated.gone);
  }
}

TEST_CASE("workers of one process may have different secrets at one port") {
  NEEDS_AUTHENTICATION();
  guarded<ferry::tcp> worker(with_secret(right));
  const auto other = std::make_shared<accepting_worker>("other");
  CHECK(worker.over->listen("group", "other", "", with_secret(wrong), other).front() == worker.address);
  worker.lets_in(right);
  CHECK(worker.connect(wrong, "other").opened);
  CHECK(failure_of(worker.connect(right, "other")).first == ferry::errc::authentication_failed);
  CHECK(failure_of(worker.connect(wrong)).first == ferry::errc::authentication_failed);
  worker.over->unlisten("group", "other");
  CHECK(worker.connect(wrong, "other").gone == false);
  CHECK(worker.connect(right, "other").gone);
}

TEST_CASE("the proofs of a handshake are HMAC-SHA256 over the transcript") {
  NEEDS_AUTHENTICATION();
  const std::string text = "what do ya want for nothing?";
  const auto made = d::prove("Jefe", "what", {std::as_bytes(std::span(text)).subspan(5)});
  // HMAC-SHA256("Jefe", "what\0do ya want for nothing?"), computed with another implementation.
  const std::array<unsigned, 4> expected{0x26, 0x50, 0x94, 0xf2};
  for (std::size_t i = 0; i != expected.size(); ++i) CHECK(std::to_integer<unsigned>(made.at(i)) == expected.at(i));

  CHECK(d::same_proof(made, made));
  for (std::size_t i = 0; i != made.size(); ++i) {
    auto damaged = made;
    damaged.at(i) ^= std::byte{1};
    CHECK_FALSE(d::same_proof(made, damaged));
  }
  CHECK_FALSE(d::same_proof(made, std::span(made).first(31)));
  CHECK(d::fresh_nonce() != d::fresh_nonce());
}

TEST_CASE("proofs of another connection are not accepted") {
  NEEDS_AUTHENTICATION();
  guarded<ferry::tcp> worker(with_secret(right));
  const challenged honest(worker.port());
  const auto proof = d::encode_proof(right, honest.hello, honest.challenge);
  CHECK(honest.enters(proof));
  SUBCASE("replayed with the same hello") {
    const challenged replay(worker.port(), honest.hello);
    CHECK_FALSE(replay.enters(proof));
  }
  SUBCASE("replayed with a fresh hello") {
    const challenged replay(worker.port());
    CHECK_FALSE(replay.enters(proof));
  }
  SUBCASE("made in the role of the other end") {
    const challenged reflecting(worker.port());
    auto own = d::encode_challenge(reflecting.once);
    d::sign_answer(own, right, reflecting.hello, reflecting.challenge);
    auto message = proof;
    std::copy(own.end() - 32, own.end(), message.end() - 32);
    CHECK_FALSE(reflecting.enters(message));
  }
  CHECK(worker.server->accepted_count() == 1);
}

TEST_CASE("an accepting end that does not know the secret is not trusted") {
  NEEDS_AUTHENTICATION();
  guarded<ferry::tcp> worker(with_secret(right));
  const ferry::hello_reply reply{"server", ferry::worker_id{7}, ferry::incarnation_id{99},
                                 ferry::feature_authenticated};
  const auto expect_failure = [&](const raw_server& server, std::string_view reason) {
    const auto result = connect_to(worker, server, right);
    const auto [kind, text] = failure_of(result);
    CHECK_MESSAGE(kind == ferry::errc::authentication_failed, text);
    CHECK_MESSAGE(text.find(reason) != text.npos, text);
    CHECK_FALSE(result.gone);
  };
  SUBCASE("it asks for no proof") {
    const raw_server server([&](raw_socket& peer) {
      (void)receive_message(peer);
      peer.send(d::encode_answer(reply));
      (void)peer.wait_closed();
    });
    expect_failure(server, "it asked for no proof of the secret");
  }
  SUBCASE("it accepts any proof") {
    const raw_server server([&](raw_socket& peer) {
      (void)receive_message(peer);
      peer.send(d::encode_challenge(d::fresh_nonce()));
      (void)receive_message(peer);
      peer.send(d::encode_answer(reply));
      (void)peer.wait_closed();
    });
    expect_failure(server, "it gave no proof of the secret");
  }
  SUBCASE("it returns the client's own proof") {
    const raw_server server([&](raw_socket& peer) {
      (void)receive_message(peer);
      peer.send(d::encode_challenge(d::fresh_nonce()));
      const auto proof = receive_message(peer);
      auto answer = d::encode_answer(reply);
      d::sign_answer(answer, wrong, {}, {});
      std::copy(proof.end() - 32, proof.end(), answer.end() - 32);
      peer.send(answer);
      (void)peer.wait_closed();
    });
    expect_failure(server, "it gave no proof of the secret");
  }
  SUBCASE("it relays the client's proof to another worker and impersonates that worker") {
    // The proof of the other worker covers the client's nonce: its answer to another hello is not valid here.
    const raw_server server([&](raw_socket& peer) {
      (void)receive_message(peer);
      challenged other(worker.port());
      peer.send(other.challenge);
      other.peer.send(receive_message(peer));
      peer.send(receive_message(other.peer));
      (void)peer.wait_closed();
    });
    expect_failure(server, "the secret of the other end is another one");
  }
  SUBCASE("it reports that the worker has left, or died") {
    for (const auto code : {ferry::errc::unknown_worker, ferry::errc::fenced, ferry::errc::shutting_down}) {
      const raw_server server([&](raw_socket& peer) {
        (void)receive_message(peer);
        peer.send(d::encode_answer(d::refusal{code, "no such worker"}));
        (void)peer.wait_closed();
      });
      expect_failure(server, "it refused without a proof of the secret");
    }
  }
  SUBCASE("it sends challenges repeatedly") {
    const raw_server server([&](raw_socket& peer) {
      (void)receive_message(peer);
      for (int i = 0; i < 3; ++i) peer.send(d::encode_challenge(d::fresh_nonce()));
      (void)peer.wait_closed();
    });
    expect_failure(server, "it gave no proof of the secret");
  }
  CHECK(worker.server->accepted_count() == 0);
}

TEST_CASE("an end without a secret answers no challenge") {
  guarded<ferry::tcp> worker({});
  const raw_server server([&](raw_socket& peer) {
    (void)receive_message(peer);
    peer.send(d::encode_challenge(d::fresh_nonce()));
    (void)peer.wait_closed();
  });
  const auto [kind, text] = failure_of(connect_to(worker, server, ""));
  CHECK_MESSAGE(kind == ferry::errc::handshake_failed, text);
}

TEST_CASE("a handshake altered in transit fails") {
  NEEDS_AUTHENTICATION();
  guarded<ferry::tcp> worker(with_secret(right));
  const auto flipped = [](std::vector<std::byte> bytes, std::size_t at) {
    bytes.at(at) ^= std::byte{4};
    return bytes;
  };
  SUBCASE("the hello, with less or different content") {
    d::nonce once = d::fresh_nonce();
    const auto honest = d::encode_hello(hello_to("server"), &once);
    // The features, incarnation and id, and the nonce; mismatched names are refused earlier.
    for (const std::size_t at :
         {std::size_t{21}, std::size_t{28}, std::size_t{36}, honest.size() - 1, honest.size() - 32}) {
      const challenged relayed(worker.port(), flipped(honest, at));
      CHECK_FALSE(relayed.enters(d::encode_proof(right, honest, relayed.challenge)));
    }
    auto stripped = d::encode_hello(hello_to("server"));
    const auto peer = raw_socket::connected(worker.port());
    peer.send(stripped);
    const auto why = refusal_in(receive_message(peer));
    REQUIRE(why);
    CHECK(why->code == ferry::errc::authentication_failed);
    CHECK(why->text.find("run the same ferry release on both") != std::string::npos);
  }
  SUBCASE("the proof") {
    for (std::size_t at = 0; at != 32; ++at) {
      const challenged peer(worker.port());
      const auto proof = d::encode_proof(right, peer.hello, peer.challenge);
      CHECK_FALSE(peer.enters(flipped(proof, proof.size() - 1 - at)));
    }
    for (const std::size_t size : {std::size_t{0}, std::size_t{20}, std::size_t{21}, std::size_t{51}}) {
      const challenged peer(worker.port());
      const auto proof = d::encode_proof(right, peer.hello, peer.challenge);
      peer.peer.send(std::span(proof).first(size));
      peer.peer.finish_sending();
      CHECK(peer.peer.wait_closed());
    }
    const challenged longer(worker.port());
    auto proof = d::encode_proof(right, longer.hello, longer.challenge);
    proof.push_back(std::byte{0});
    proof[16] = std::byte{33};
    CHECK_FALSE(longer.enters(proof));
  }
  SUBCASE("the answer") {
    d::nonce once{};
    const auto hello = d::encode_hello(hello_to("server"), &once);
    const auto challenge = d::encode_challenge(once);
    auto answer = d::encode_answer(ferry::hello_reply{"server", ferry::worker_id{7}, ferry::incarnation_id{99}, 2});
    d::sign_answer(answer, right, hello, challenge);
    CHECK(d::answer_signed(answer, right, hello, challenge));
    CHECK_FALSE(d::answer_signed(answer, wrong, hello, challenge));
    for (std::size_t at = 0; at != answer.size(); ++at)
      CHECK_FALSE(d::answer_signed(flipped(answer, at), right, hello, challenge));
    for (std::size_t at = 0; at != hello.size(); ++at)
      CHECK_FALSE(d::answer_signed(answer, right, flipped(hello, at), challenge));
    for (std::size_t size = 0; size != answer.size(); ++size)
      CHECK_FALSE(d::answer_signed(std::span(answer).first(size), right, hello, challenge));
    const auto reply = d::decode_answer(body_of(answer));
    CHECK(std::get<ferry::hello_reply>(reply).name == "server");
  }
  CHECK(worker.server->accepted_count() == 0);
  worker.lets_in(right);
}

}  // namespace authentication_test
