// Connections over a reactor that is not the library's.

#include <ferry/test_kit/poll_reactor.hpp>

#include <atomic>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include <doctest/doctest.h>

#include <ferry/test_kit/transport_conformance.hpp>

#include "forwarding_transport.hpp"

namespace {

// A transport of the library whose connections have a reactor of their own.
template <class Tag>
class on_own_threads final : public ferry_test::forwarding_transport {
 public:
  explicit on_own_threads(const std::shared_ptr<ferry::reactor>& threads)
      : forwarding_transport(ferry::transport_traits<Tag>::open(*threads)), threads_(threads) {}

 private:
  const std::shared_ptr<ferry::reactor> threads_;
};

template <class Tag>
struct over_poll {};

template <class Tag, bool Crosses>
struct under_test {
  using tag = over_poll<Tag>;
  static constexpr bool crosses_processes = Crosses;
  static std::string missing() { return {}; }
  static ferry::transport_options options() { return {}; }
};

}  // namespace

template <class Tag>
struct ferry::transport_traits<over_poll<Tag>> {
  static constexpr std::string_view name = ferry::transport_traits<Tag>::name;
  static constexpr int priority = ferry::transport_traits<Tag>::priority;
  static std::string unusable() { return ferry::transport_traits<Tag>::unusable(); }
  static std::shared_ptr<ferry::transport> open(ferry::reactor&) {
    return std::make_shared<on_own_threads<Tag>>(ferry::test_kit::poll_reactor::start());
  }
};

TEST_CASE("tcp over a reactor of somebody's own conforms") {
  ferry::test_kit::transport_conformance<under_test<ferry::tcp, true>>();
}
TEST_CASE("unix over a reactor of somebody's own conforms") {
  ferry::test_kit::transport_conformance<under_test<ferry::unix_domain, true>>();
}
TEST_CASE("inproc over a reactor of somebody's own conforms") {
  ferry::test_kit::transport_conformance<under_test<ferry::inproc, false>>();
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
