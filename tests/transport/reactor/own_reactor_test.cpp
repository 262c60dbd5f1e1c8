// Connections over a reactor that is not the library's.

#include <ferry/test_kit/poll_reactor.hpp>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include <ferry/test_kit/transport_conformance.hpp>

namespace own_reactor_test {

namespace {

template <class Tag, bool Crosses>
struct over_poll {
  using tag = Tag;
  static constexpr bool crosses_processes = Crosses;
  static std::string missing() { return {}; }
  static ferry::transport_options options() { return {}; }
  static std::shared_ptr<ferry::reactor> reactor() { return ferry::test_kit::poll_reactor::start(); }
};

}  // namespace

TEST_CASE("tcp over another reactor conforms") {
  ferry::test_kit::transport_conformance<over_poll<ferry::tcp, true>>();
}
TEST_CASE("unix over another reactor conforms") {
  ferry::test_kit::transport_conformance<over_poll<ferry::unix_domain, true>>();
}
TEST_CASE("shm over another reactor conforms") {
  ferry::test_kit::transport_conformance<over_poll<ferry::shm, true>>();
}
TEST_CASE("inproc over another reactor conforms") {
  ferry::test_kit::transport_conformance<over_poll<ferry::inproc, false>>();
}

TEST_CASE("another thread serves a reactor while its thread blocks") {
  struct step : ferry::work {
    ferry::reactor* loop = nullptr;
    std::atomic<bool>* done = nullptr;
    step* then = nullptr;
  };
  const auto loop = ferry::test_kit::poll_reactor::start();
  std::atomic<bool> first_done{false}, second_done{false};
  step first, second;
  first.loop = loop.get();
  first.done = &first_done;
  first.then = &second;
  second.done = &second_done;
  first.run = [](ferry::work* item) noexcept {
    step& own = *static_cast<step*>(item);
    own.loop->begin_blocking();
    own.loop->post(own.then);
    while (!own.then->done->load()) std::this_thread::yield();
    own.loop->end_blocking();
    own.done->store(true);
  };
  second.run = [](ferry::work* item) noexcept { static_cast<step*>(item)->done->store(true); };
  loop->post(&first);
  while (!first_done.load()) std::this_thread::yield();
  CHECK(second_done.load());
}

}  // namespace own_reactor_test
