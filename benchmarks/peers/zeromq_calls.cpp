// Messages of ZeroMQ between two DEALER sockets, which neither a schema nor an identity makes slower: what it has for calls is on
// top of that.

#include <stdexcept>
#include <string>
#include <vector>

#include <zmq.h>

#include "../support/statistics.hpp"
#include "calls.hpp"

namespace {

void check(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string(what) + ": " + ::zmq_strerror(::zmq_errno()));
}

struct dealer {
  void* context = ::zmq_ctx_new();
  void* socket = ::zmq_socket(context, ZMQ_DEALER);

  void send(const std::vector<char>& bytes) const {
    check(::zmq_send(socket, bytes.data(), bytes.size(), 0) >= 0, "zmq_send");
  }
  // The message as it is, without a copy.
  void receive() const {
    zmq_msg_t message;
    ::zmq_msg_init(&message);
    check(::zmq_msg_recv(&message, socket, 0) >= 0, "zmq_msg_recv");
    ::zmq_msg_close(&message);
  }
};

void serve(const peer::job& of, const peer::announcement& announce) {
  const dealer end;
  const std::string wanted = of.transport == "tcp" ? "tcp://127.0.0.1:*" : "ipc://" + peer::fresh_path();
  check(::zmq_bind(end.socket, wanted.c_str()) == 0, "zmq_bind");
  char address[256];
  std::size_t size = sizeof address;
  check(::zmq_getsockopt(end.socket, ZMQ_LAST_ENDPOINT, address, &size) == 0, "ZMQ_LAST_ENDPOINT");
  announce(address);
  const std::vector<char> reply(of.reply_bytes(), 'r');
  for (;;) {
    end.receive();
    end.send(reply);
  }
}

std::vector<double> measure(const peer::job& of, const std::string& address) {
  const dealer end;
  check(::zmq_connect(end.socket, address.c_str()) == 0, "zmq_connect");
  const std::vector<char> request(of.bytes, 'q');
  const auto call = [&] {
    end.send(request);
    end.receive();
  };
  for (int warm = 0; warm != 10; ++warm) call();
  if (of.what != peer::kind::rate) return ferry_bench::time_each(of.window, 3, call);
  return {peer::per_second(
      of, [&] { end.send(request); }, [&] { end.receive(); })};
}

}  // namespace

int main(int argc, char** argv) {
  int major = 0;
  int minor = 0;
  int patch = 0;
  ::zmq_version(&major, &minor, &patch);
  const std::string version = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  return peer::run(
      argc, argv,
      {"ZeroMQ " + version + " (DEALER to DEALER, untyped messages, one I/O thread)", {"tcp", "unix"}, serve, measure});
}
