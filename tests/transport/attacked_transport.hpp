#pragma once

// For tests of misbehaving peers: each gets an error or is dropped, and no other peer is affected.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include <ferry/test_kit/transport_kit.hpp>
#include <ferry/transport/transport.hpp>

#include "sockets/raw_socket.hpp"

namespace transport_test {

/// A transport with two workers: "server", whose peers misbehave, and "honest", which well-behaved peers reach.
template <class Tag>
struct attacked_transport {
  ferry::test_kit::captured_log log;
  std::shared_ptr<ferry::reactor> loop = ferry::test_kit::test_reactor();
  std::shared_ptr<ferry::transport> over = ferry::transport_traits<Tag>::open(*loop);
  std::shared_ptr<ferry::test_kit::accepting_worker> server =
      std::make_shared<ferry::test_kit::accepting_worker>("server");
  std::shared_ptr<ferry::test_kit::accepting_worker> honest =
      std::make_shared<ferry::test_kit::accepting_worker>("honest");
  std::string address;

  /// `prepare` is called for each connection of the server before it is started.
  explicit attacked_transport(std::function<void(ferry::test_kit::recorder&)> prepare = {}) {
    server->prepare = std::move(prepare);
    address = over->listen("group", "server", "", {}, server).front();
    over->listen("group", "honest", "", {}, honest);
  }
  attacked_transport(const attacked_transport&) = delete;
  attacked_transport& operator=(const attacked_transport&) = delete;
  ~attacked_transport() {
    over->unlisten("group", "server");
    over->unlisten("group", "honest");
  }

  /// A well-behaved peer is served.
  void serves_others() {
    using namespace ferry::test_kit;
    auto result = connect(*over, address, hello_to("honest"));
    INFO(failure_of(result).second);
    REQUIRE(result.opened);
    const auto own_log = std::make_shared<recorder>();
    result.opened->start(own_log);
    result.opened->send(make_message(1, 100, {make_tensor(1, 500'000)}));
    const auto [far_end, far_log] = honest->accepted(served_++);
    const auto arrived = far_log->take(1);
    REQUIRE(arrived.size() == 1);
    CHECK(is_message(arrived[0], 1, 100));
    CHECK(is_tensor(arrived[0].tensors.at(0), 1, 500'000));
    result.opened->close(ferry::make_error(ferry::errc::shutting_down, "bye"));
    CHECK(own_log->wait_closed());
    CHECK(far_log->wait_closed());
  }

 private:
  std::size_t served_ = 0;
};

}  // namespace transport_test
