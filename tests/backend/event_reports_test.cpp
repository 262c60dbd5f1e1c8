// The order in which the rpc layer is told what happens to members.

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "backend/event_reports.hpp"

namespace event_reports_test {

using ferry::member_event;

namespace {

class listener final : public ferry::request_handler {
 public:
  void on_request(const std::shared_ptr<ferry::reply_channel>&, const ferry::worker_info&,
                  ferry::inbound_message&&) noexcept override {}
  void on_member_event(const member_event& event) noexcept override { told.push_back(event.what); }
  [[nodiscard]] bool busy() const noexcept override { return false; }
  std::vector<member_event::kind> told;
};

const member_event joined{member_event::kind::joined, {}, {}, {}};
const member_event left{member_event::kind::left, {}, {}, {}};

}  // namespace

TEST_CASE("what others do once they see a change is told after it") {
  listener heard;
  ferry::detail::event_reports reports;
  reports.set(&heard);
  std::atomic<bool> seen{false};
  std::atomic<bool> leaving{false};
  std::thread other([&] {
    while (!seen) std::this_thread::yield();
    leaving = true;
    reports.member(left);
  });
  reports.member(joined, [&] {
    seen = true;
    while (!leaving) std::this_thread::yield();
    for (int i = 0; i != 1000; ++i) std::this_thread::yield();  // time for a leave that does not wait
    return true;
  });
  other.join();
  CHECK(heard.told == std::vector{member_event::kind::joined, member_event::kind::left});
}

TEST_CASE("a change that did not come about is not told") {
  listener heard;
  ferry::detail::event_reports reports;
  reports.set(&heard);
  reports.member(left, [] { return false; });
  CHECK(heard.told.empty());
}

}  // namespace event_reports_test
