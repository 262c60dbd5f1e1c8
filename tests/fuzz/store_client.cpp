// What a tcp_store reads from its server. Input: u8 which, then
//   0  the hello and a reply, as they come off the connection; 2 the same for a client with a secret
//   1  the body of a reply: u8 of which operation, then the body

#include <array>

#include <sys/socket.h>

#include <ferry/base/secret.hpp>

#include "store/tcp/tcp_connection.hpp"
#include "store/tcp/tcp_replies.hpp"
#include "targets.hpp"

namespace fuzz {
namespace store_client_target {
namespace {

namespace d = ferry::detail;
namespace wire = ferry::detail::store_wire;
using outcome = d::store_connection::outcome;

void talk(bytes said, const std::string& secret) {
  static const d::interrupt never;
  std::array<int, 2> ends{};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0, "there are sockets");
  d::unique_fd server(ends[1]);
  d::store_connection connection(never, d::unique_fd(ends[0]));
  require(::send(server.get(), said.data(), said.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(said.size()),
          "the input fits the socket");
  ::shutdown(server.get(), SHUT_WR);
  const auto now = ferry::deadline(ferry::clock::now());
  accepted([&] {
    d::server_hello hello;
    if (connection.greet(1, now, hello, secret) != outcome::done) return;
    require(secret.empty() || hello.version != wire::version, "no server proves the secret by chance");
    connection.set_max_body_bytes(wire::max_body_bytes(65536));
    std::string request = wire::begin(wire::operation::count);
    d::put_string(request, "");
    wire::end_frame(request);
    for (;;) {
      wire::status status{};
      std::string body;
      if (connection.exchange(request, now, status, body) != outcome::done) return;
      require(status <= wire::status::error, "the status is known");
      require(body.size() <= said.size(), "a body has what arrived");
    }
  });
}

void read(std::uint8_t operation, std::string_view body) {
  accepted([&] {
    switch (operation % 9) {
      case 0: require(ferry::errc_name(wire::read_error(body).code) != "unknown", "an error has a known number"); break;
      case 1: {
        const auto missing = wire::read_missing(body);
        require(missing.names.size() <= missing.count && missing.names.size() <= wire::max_missing_named,
                "some missing keys are named");
        break;
      }
      case 2: {
        std::vector<std::string> found{"before"};
        wire::read_values(body, 3, found);
        require(found.size() >= 2 && found.size() <= 4, "as many values as keys");
        std::string again;
        for (std::size_t i = 1; i != found.size(); ++i) d::put_string(again, found[i]);
        require(again == body, "values encode to what they were decoded from");
        break;
      }
      case 3: require(wire::read_value(body).size() + 4 == body.size(), "a value is the whole body"); break;
      case 4: (void)wire::read_sum(body); break;
      case 5: (void)wire::read_erased(body); break;
      case 6: (void)wire::read_count(body); break;
      case 7: {
        const auto state = wire::read_change(body);
        require(!state.value || state.value->size() + 9 == body.size(), "a value ends with the body");
        break;
      }
      default: {
        std::vector<ferry::store_entry> found{{"p", "before"}};
        const bool more = wire::read_page(body, "p", found);
        require(!more || found.size() > 1, "every page goes on");
        for (std::size_t i = 1; i < found.size(); ++i) require(found[i - 1].key < found[i].key, "keys are sorted");
      }
    }
  });
}

void run(bytes input) {
  source from(input);
  const auto which = from.number<std::uint8_t>();
  if (which % 2 == 0) {
    talk(from.rest(), which % 4 == 2 && ferry::authentication_available() ? "secret" : "");
  } else {
    const auto operation = from.number<std::uint8_t>();
    read(operation, text_of(from.rest()));
  }
}

std::string server_hello(wire::hello_status status = wire::hello_status::welcome) {
  std::string out(wire::magic);
  d::put(out, wire::version);
  d::put(out, static_cast<std::uint16_t>(status));
  d::put(out, std::uint64_t{0});
  d::put(out, std::uint64_t{7});
  d::put(out, std::uint32_t{4096});
  d::put(out, std::uint32_t{65536});
  return out;
}

void seeds(const seed_sink& sink) {
  std::string reply = wire::begin(wire::status::ok);
  d::put(reply, std::uint64_t{5});
  wire::end_frame(reply);
  sink("talk", seed().number(std::uint8_t{0}).add(server_hello()).add(reply).add(reply));
  const std::string some(32, 'x');
  sink("challenge", seed()
                        .number(std::uint8_t{2})
                        .add(server_hello(wire::hello_status::challenge))
                        .add(some)
                        .add(server_hello())
                        .add(some)
                        .add(reply));
  const auto add = [&](std::string_view name, std::uint8_t operation, std::string_view body) {
    sink(name, seed().number(std::uint8_t{1}).number(operation).add(body));
  };
  std::string body;
  d::put(body, static_cast<std::uint16_t>(ferry::errc::store_failed));
  add("error", 0, body + "text");
  body.clear();
  d::put(body, std::uint32_t{9});
  d::put(body, std::uint32_t{2});
  d::put_string(body, "a");
  d::put_string(body, "b");
  add("missing", 1, body);
  body.clear();
  d::put_string(body, "value");
  add("value", 3, body);
  d::put_string(body, "");
  add("values", 2, body);
  body.clear();
  d::put(body, std::int64_t{-5});
  add("sum", 4, body);
  add("count", 6, body);
  add("erased", 5, "\1");
  d::put(body, std::uint8_t{1});
  add("change", 7, body + "value");
  body.clear();
  d::put(body, std::uint8_t{1});
  d::put_string(body, "p/a");
  d::put_string(body, "value");
  d::put_string(body, "p/b");
  d::put_string(body, "");
  add("page", 8, body);
}

}  // namespace
}  // namespace store_client_target

const target store_client{"store_client", &store_client_target::run, &store_client_target::seeds};

}  // namespace fuzz
