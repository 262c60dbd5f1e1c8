// Addresses as other workers publish them. Input: u8 which parser, then the text.

#include <ferry/device/device.hpp>
#include <ferry/transport/address.hpp>

#include <algorithm>

#include "base/net/socket_address.hpp"
#include "targets.hpp"

namespace fuzz {
namespace address_target {
namespace {

// Whatever has survived a parser is printed into logs, and handed to the system as a C string.
void check_printable(std::string_view host) {
  require(std::all_of(host.begin(), host.end(), [](char c) { return c > ' ' && c < 127; }),
          "hosts have printable characters only");
}

void run(bytes input) {
  source from(input);
  const auto which = from.number<std::uint8_t>() % 4;
  const std::string_view text = text_of(from.rest());
  accepted([&] {
    switch (which) {
      case 0: {
        const auto parsed = ferry::address::parse(text);
        require(ferry::address::parse(parsed.to_string()) == parsed, "an address survives being printed");
        if (parsed.scheme == "unix" || parsed.scheme == "shm") {
          const auto where = ferry::detail::socket_address::from_unix(parsed.host);
          require(where.text() == parsed.host, "a unix address names the same socket");
        } else {
          check_printable(parsed.host);
        }
        break;
      }
      case 1: {
        const auto parsed = ferry::host_port::parse(text);
        check_printable(parsed.host);
        require(ferry::host_port::parse(parsed.to_string()) == parsed, "host and port survive being printed");
        break;
      }
      case 2:
        (void)ferry::is_loopback(text);
        (void)ferry::is_unspecified(text);
        if (ferry::is_ipv6_literal(text)) check_printable(text);
        if (const auto literal = ferry::detail::socket_address::from_literal(std::string(text), 7)) {
          require(literal->port() == 7 && !literal->host().empty(), "a literal is an address");
        }
        break;
      default: {
        const auto where = ferry::parse_device(text);
        require(ferry::parse_device(ferry::to_string(where)) == where, "a device survives being printed");
      }
    }
  });
}

void seeds(const seed_sink& sink) {
  const auto add = [&](std::string_view name, std::uint8_t which, std::string_view text) {
    sink(name, seed().number(which).add(text));
  };
  add("tcp", 0, "tcp://10.0.0.2:4711");
  add("tcp6", 0, "tcp://[fe80::1%eth0]:80");
  add("name", 0, "tcp://node-7.cluster.example:65535");
  add("abstract", 0, "unix:@ferry-123");
  add("shared", 0, "shm:@ferry-123");
  add("path", 0, "unix:/tmp/ferry.sock");
  add("inproc", 0, "inproc:123-0123456789abcdef");
  add("host", 1, "localhost:29500");
  add("host6", 1, "[::ffff:127.0.0.1]:1");
  add("loopback", 2, "127.0.1.1");
  add("any6", 2, "::");
  add("cuda", 3, "cuda:7");
  add("cpu", 3, "cpu");
}

}  // namespace
}  // namespace address_target

const target address{"address", &address_target::run, &address_target::seeds};

}  // namespace fuzz
