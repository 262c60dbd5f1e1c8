// Reads of the group's log for all threads that ask for one.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include <ferry/base/time.hpp>
#include <ferry/transport/reactor.hpp>

#include "backend/membership/store_access.hpp"
#include "gate.hpp"

namespace store_access_test {

using namespace std::chrono_literals;
using ferry::detail::store_access;

// The first read hangs until the gate is open, and fails; the others succeed. Lives as long as a thread reads.
class first_read_hangs final : public ferry::detail::store_user, public std::enable_shared_from_this<first_read_hangs> {
 public:
  [[nodiscard]] std::shared_ptr<void> keep_alive() override { return shared_from_this(); }
  [[nodiscard]] bool closing() const noexcept override { return false; }
  [[nodiscard]] bool ended() const noexcept override { return false; }
  [[nodiscard]] bool catch_up() noexcept override {
    if (reads.fetch_add(1) != 0) return true;
    hung.pass();
    return false;
  }
  [[nodiscard]] std::string name() const override { return "worker0"; }

  ferry_test::gate hung;
  std::atomic<int> reads{0};
  store_access access{*this, nullptr, ferry::shared_reactor()};
};

TEST_CASE("a read that is asked for while another one hangs does not fail with that, but is made after it") {
  const auto user = std::make_shared<first_read_hangs>();
  const auto first = user->access.request_read();
  user->hung.await_arrivals(1);
  const auto second = user->access.request_read();
  user->hung.open();
  const auto until = ferry::deadline::after(60s);
  while (user->access.last_good_read() < second && !until.expired()) std::this_thread::yield();
  CHECK(first < second);
  CHECK(user->access.last_good_read() == second);
  CHECK(user->reads == 2);
  CHECK(user->access.read_log(until));
}

}  // namespace store_access_test
