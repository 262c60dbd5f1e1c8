// What a tcp_store_server reads from its clients. Input: pieces, each an u8 (bit 0: from which of two clients; 2: it says
// hello first; 4: it hangs up; 8, in the first piece: the server has a secret; 16: it offers to prove one) and an u8 n, and n
// bytes that it sends.

#include <array>
#include <optional>

#include <sys/socket.h>
#include <unistd.h>

#include <ferry/base/secret.hpp>

#include "base/unique_fd.hpp"
#include "store/tcp/tcp_protocol.hpp"
#include "store/tcp/tcp_server_core.hpp"
#include "store/tcp/tcp_server_session.hpp"
#include "targets.hpp"

namespace fuzz {
namespace store_server_target {
namespace {

namespace d = ferry::detail;
namespace wire = ferry::detail::store_wire;

constexpr ferry::tcp_store_limits server_limits{.max_value_bytes = 4096,
                                                .max_total_bytes = 64 * 1024,
                                                .max_connections = 4,
                                                .message_timeout = std::chrono::hours(1)};

std::string client_hello(std::uint64_t client, bool offers) {
  std::string out(wire::magic);
  d::put(out, wire::version);
  d::put(out, std::uint16_t{0});
  d::put(out, offers ? wire::feature_authentication : std::uint64_t{0});
  d::put(out, client);
  if (offers) out.append(32, 'n');
  return out;
}

// One client, and a check that what it receives are a hello and replies.
class client {
 public:
  client(d::store_server_core& server, std::uint64_t id) : id_(id), secured_(!server.secret().empty()) {
    std::array<int, 2> ends{};
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0,
            "there are sockets");
    socket_.reset(ends[0]);
    server.begin_session(asio::ip::tcp::socket(server.context(), asio::ip::tcp::v4(), ends[1]));
  }

  void say(std::string_view text) const {
    // What a closed or a busy server does not take is lost: it has hung up, or waits until its reply is taken.
    (void)::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  void say_hello(bool offers) const { say(client_hello(id_, offers)); }
  void hang_up() { socket_.reset(); }

  void listen() {
    if (!socket_) return;
    std::array<char, 16384> buffer;
    for (;;) {
      const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) break;
      heard_.append(buffer.data(), static_cast<std::size_t>(got));
    }
    if (!greeted_) {
      if (heard_.size() < wire::server_hello_bytes) return;
      require(heard_.starts_with(wire::magic), "a server says that it is one");
      const int status = static_cast<unsigned char>(heard_[6]);
      // No input is the right proof: a client that a server with a secret welcomes has bypassed the proof.
      require(!secured_ || status != 0, "a server with a secret admits no client without a proof");
      const std::size_t size = wire::server_hello_bytes + (status == 3 ? 32 : 0);
      if (heard_.size() < size) return;
      heard_.erase(0, size);
      if (status == 3) return listen();  // there is a second hello
      greeted_ = true;
    }
    while (heard_.size() >= wire::frame_header_bytes) {
      const auto header = wire::read_header(heard_);
      require(header.kind <= static_cast<std::uint8_t>(wire::status::error), "replies have a known status");
      require(header.length <= wire::max_body_bytes(server_limits.max_value_bytes), "replies are bounded");
      if (heard_.size() - wire::frame_header_bytes < header.length) break;
      heard_.erase(0, wire::frame_header_bytes + header.length);
    }
  }

 private:
  d::unique_fd socket_;
  std::uint64_t id_;
  bool secured_;
  bool greeted_ = false;
  std::string heard_;
};

void run(bytes input) {
  const bool secured =
      !input.empty() && (std::to_integer<unsigned>(input[0]) & 8U) != 0 && ferry::authentication_available();
  d::store_server_core server(server_limits, secured ? "secret" : "");
  std::array<std::optional<client>, 2> clients;
  for (std::size_t i = 0; i != clients.size(); ++i) clients[i].emplace(server, i + 1);
  const auto settle = [&] {
    server.context().restart();
    while (server.context().poll() != 0) {
      for (auto& each : clients) each->listen();
    }
    for (auto& each : clients) each->listen();
    require(server.table().bytes() <= server_limits.max_total_bytes, "the content is bounded");
  };
  source from(input);
  while (!from.empty()) {
    const auto what = from.number<std::uint8_t>();
    const auto count = from.number<std::uint8_t>();
    auto& speaker = clients[what & 1U];
    if ((what & 2U) != 0) speaker->say_hello((what & 16U) != 0);
    speaker->say(text_of(from.take(count)));
    settle();
    if ((what & 4U) != 0) {
      speaker->hang_up();
      settle();
      speaker.emplace(server, (what & 1U) + 1U);
    }
  }
  for (auto& each : clients) each->hang_up();
  settle();
  require(server.connections() == 0, "a connection that was closed is forgotten");
  require(server.unfinished_bytes() == 0, "the bytes of closed connections are not counted");
}

std::string request(wire::operation what, std::string body) {
  std::string out = wire::begin(what) + std::move(body);
  wire::end_frame(out);
  return out;
}
std::string strings(std::initializer_list<std::string_view> all) {
  std::string out;
  for (const std::string_view each : all) d::put_string(out, each);
  return out;
}
std::string get_body(std::uint8_t flags, std::initializer_list<std::string_view> keys) {
  std::string out;
  d::put(out, flags);
  d::put(out, static_cast<std::uint32_t>(keys.size()));
  return out + strings(keys);
}
template <class Integer>
std::string with_number(std::string text, Integer number) {
  d::put(text, number);
  return text;
}

void seeds(const seed_sink& sink) {
  using enum wire::operation;
  const auto say = [](seed& out, std::uint8_t flags, std::string_view text) {
    out.number(flags).number(static_cast<std::uint8_t>(text.size())).add(text);
  };
  seed all;
  say(all, 2, request(set, strings({"key", "value"})));
  say(all, 0, request(wire::operation::get, get_body(2, {"key"})));
  say(all, 0, request(add, with_number(strings({"n"}), std::int64_t{5})));
  say(all, 0, request(compare_set, strings({"key", "value", "other"})));
  say(all, 0, request(list, strings({"", ""})));
  say(all, 0, request(count, strings({"k"})));
  say(all, 0, request(wait_change, with_number(strings({"key"}), ~std::uint64_t{0})));
  say(all, 0, request(erase, strings({"key"})));
  sink("operations", all);
  seed proof;
  say(proof, 2 + 8 + 16, std::string(32, 'p'));
  say(proof, 2, request(count, strings({"k"})));
  sink("proof", proof);
  seed waits;
  say(waits, 2, request(wire::operation::get, get_body(3, {"a", "b"})));
  say(waits, 3, request(set, strings({"a", "1"})));
  say(waits, 1, request(set, strings({"b", "2"})));
  say(waits, 0, request(wait_change, with_number(strings({"a"}), std::uint64_t{1})));
  say(waits, 1, request(erase, strings({"a"})));
  sink("waits", waits);
  seed cancelled;
  say(cancelled, 2, request(wire::operation::get, get_body(3, {"a", "b"})) + request(cancel, ""));
  say(cancelled, 0, request(wait_change, with_number(strings({"c"}), std::uint64_t{0})));
  say(cancelled, 4, request(cancel, ""));
  say(cancelled, 2, request(add, with_number(strings({"c"}), std::int64_t{1})));
  sink("cancelled", cancelled);
}

}  // namespace
}  // namespace store_server_target

const target store_server{"store_server", &store_server_target::run, &store_server_target::seeds};

}  // namespace fuzz
