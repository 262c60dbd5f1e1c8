// The table of the open links of a worker.

#include "backend/links/link_table.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include <doctest/doctest.h>

namespace link_table_test {

namespace {

using namespace ferry;
using namespace std::chrono_literals;

struct owner final : detail::link_owner {
  detail::worker_flow bounds{flow_limits()};
  void on_link_closed(void*) noexcept override {}
  void count_late_reply() noexcept override {}
  [[nodiscard]] bool closing() const noexcept override { return false; }
  [[nodiscard]] detail::worker_flow& flow() noexcept override { return bounds; }
  void count_sent(std::int64_t) noexcept override {}
  void count_handled(std::int64_t) noexcept override {}
  void run_later(work* item) noexcept override { item->run(item); }
  void look_again_soon() noexcept override {}
  void check_deadlines_at(deadline) noexcept override {}
};

std::shared_ptr<detail::outgoing_link> link_to(int id, std::uint64_t incarnation) {
  return std::make_shared<detail::outgoing_link>(
      std::make_shared<owner>(),
      detail::remote_worker(worker_info("peer", worker_id{id}), incarnation_id{incarnation}));
}

}  // namespace

TEST_CASE("a link is in the table from add to remove, once, and its traffic stays") {
  detail::link_table links;
  const auto first = link_to(1, 7);
  const auto second = link_to(1, 8);
  CHECK(links.add(first));
  CHECK(links.add(second));
  CHECK(links.size() == 2);
  CHECK(links.all().out.size() == 2);
  const auto of = links.of(worker_id{1}, incarnation_id{8});
  REQUIRE(of.out.size() == 1);
  CHECK(of.out.front() == second);
  CHECK(links.remove_outgoing(first.get()) == first);
  CHECK(links.remove_outgoing(first.get()) == nullptr);
  CHECK(links.remove_incoming(second.get()) == nullptr);
  CHECK(links.size() == 1);
  REQUIRE(links.traffic().size() == 1);
  CHECK(links.traffic().front().peer.id() == 1);
}

TEST_CASE("a table that refuses new links empties") {
  detail::link_table links;
  const auto open = link_to(1, 7);
  REQUIRE(links.add(open));
  links.refuse_new();
  CHECK_FALSE(links.add(link_to(2, 7)));
  CHECK_FALSE(links.wait_until_empty(clock::now()));
  std::thread removes([&] { (void)links.remove_outgoing(open.get()); });
  CHECK(links.wait_until_empty(clock::now() + 100s));
  removes.join();
  CHECK(links.all().out.empty());
}

}  // namespace link_table_test
