// Calls of Cap'n Proto with its own event loop in each process, as its EzRpc classes arrange them.

#include <string>
#include <vector>

#include <capnp/common.h>
#include <capnp/ez-rpc.h>
#include <kj/async.h>

#include "../support/statistics.hpp"
#include "calls.hpp"
#include "capnp_calls.capnp.h"

namespace {

// A receiver reads what comes: by default no more than 64 MiB of a message.
capnp::ReaderOptions without_limit() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = kj::maxValue;
  return options;
}

struct server final : Calls::Server {
  kj::Promise<void> echo(EchoContext context) override {
    const auto data = context.getParams().getData();
    context.getResults(capnp::MessageSize{data.size() / 8 + 16, 0}).setData(data);
    return kj::READY_NOW;
  }
  kj::Promise<void> size(SizeContext context) override {
    const auto size = context.getParams().getData().size();
    context.releaseParams();
    context.getResults(capnp::MessageSize{8, 0}).setSize(size);
    return kj::READY_NOW;
  }
};

void serve(const peer::job& of, const peer::announcement& announce) {
  const bool tcp = of.transport == "tcp";
  const std::string wanted = tcp ? "127.0.0.1" : "unix:" + peer::fresh_path();
  capnp::EzRpcServer listening(kj::heap<server>(), wanted.c_str(), 0, without_limit());
  auto& scope = listening.getWaitScope();
  const auto port = listening.getPort().wait(scope);
  announce(tcp ? wanted + ":" + std::to_string(port) : wanted);
  kj::NEVER_DONE.wait(scope);
}

std::vector<double> measure(const peer::job& of, const std::string& address) {
  capnp::EzRpcClient client(address.c_str(), 0, without_limit());
  auto& scope = client.getWaitScope();
  Calls::Client remote = client.getMain<Calls>();
  const std::vector<kj::byte> bytes(of.bytes, 1);
  const kj::ArrayPtr<const kj::byte> data(bytes.data(), bytes.size());
  const capnp::MessageSize hint{data.size() / 8 + 16, 0};
  const auto echo = [&] {
    auto request = remote.echoRequest(hint);
    request.setData(data);
    return request.send();
  };
  const auto call = [&] {
    if (of.what == peer::kind::send) {
      auto request = remote.sizeRequest(hint);
      request.setData(data);
      (void)request.send().wait(scope).getSize();
    } else {
      (void)echo().wait(scope).getData().size();
    }
  };
  for (int warm = 0; warm != 10; ++warm) call();
  if (of.what != peer::kind::rate) return ferry_bench::time_each(of.window, 3, call);

  peer::rate_window window(of);
  struct chain {
    decltype(echo)& make;
    peer::rate_window& window;
    kj::Promise<void> next() {
      return make().then([this](auto&&) -> kj::Promise<void> { return window.again() ? next() : kj::READY_NOW; });
    }
  } one{echo, window};
  kj::Vector<kj::Promise<void>> all;
  for (std::size_t i = 0; i != peer::in_flight; ++i) all.add(one.next());
  kj::joinPromises(all.releaseAsArray()).wait(scope);
  return {window.per_second()};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string version = std::to_string(CAPNP_VERSION / 1000000) + "." +
                              std::to_string(CAPNP_VERSION / 1000 % 1000) + "." + std::to_string(CAPNP_VERSION % 1000);
  return peer::run(
      argc, argv, {"Cap'n Proto " + version + " (EzRpc, one thread in each process)", {"tcp", "unix"}, serve, measure});
}
